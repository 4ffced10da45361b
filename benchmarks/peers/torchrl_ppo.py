"""PPO of TorchRL, built from its parts as in its tutorial. It does not scale rewards by the return."""

from __future__ import annotations

import torch
from tensordict.nn import AddStateIndependentNormalScale, TensorDictModule
from torch import nn
from torch.distributions import Independent, Normal
from torchrl.collectors import Collector
from torchrl.data import (
    LazyTensorStorage,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
)
from torchrl.envs import (
    ClipTransform,
    Compose,
    DoubleToFloat,
    GymEnv,
    RewardSum,
    StepCounter,
    TransformedEnv,
    VecNorm,
)
from torchrl.modules import MLP, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from benchmarks.peers.problems import PROBLEMS, steps_per_second


def ppo(steps: int, problem: str) -> float:
    """Train on one environment with continuous actions."""
    p = PROBLEMS[problem]
    torch.manual_seed(1)
    env = TransformedEnv(
        GymEnv(p.env_id),
        Compose(
            DoubleToFloat(),
            VecNorm(in_keys=["observation"]),
            ClipTransform(in_keys=["observation"], low=-10, high=10),
            RewardSum(),
            StepCounter(),
        ),
    )
    obs_dim, act_dim = env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1]
    layers = {"num_cells": list(p.layers), "activation_class": nn.Tanh}
    network = nn.Sequential(
        MLP(in_features=obs_dim, out_features=act_dim, **layers), AddStateIndependentNormalScale(act_dim)
    )
    actor = ProbabilisticActor(
        TensorDictModule(network, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"], spec=env.action_spec, return_log_prob=True,
        distribution_class=lambda loc, scale: Independent(Normal(loc, scale), 1),
    )  # fmt: skip
    critic = ValueOperator(MLP(in_features=obs_dim, out_features=1, **layers), in_keys=["observation"])
    loss_module = ClipPPOLoss(
        actor, critic, clip_epsilon=p.clip, entropy_bonus=False, critic_coeff=p.value_weight, loss_critic_type="l2",
        normalize_advantage=True, clip_value=True,
    )  # fmt: skip
    advantage = GAE(gamma=p.gamma, lmbda=p.gae_lambda, value_network=critic)
    parameters = list(loss_module.parameters())
    optimizer = torch.optim.Adam(parameters, lr=p.learning_rate, eps=1e-5)
    memory = TensorDictReplayBuffer(
        storage=LazyTensorStorage(p.batch), sampler=SamplerWithoutReplacement(), batch_size=p.minibatch
    )
    rollouts = iter(Collector(env, actor, frames_per_batch=p.batch, total_frames=-1))

    def train(updates: int) -> None:
        for _ in range(updates):
            rollout = next(rollouts)
            with torch.no_grad():
                advantage(rollout)
            memory.empty()
            memory.extend(rollout.reshape(-1))
            for _ in range(p.epochs):
                for minibatch in memory:
                    losses = loss_module(minibatch)
                    optimizer.zero_grad()
                    (losses["loss_objective"] + losses["loss_critic"]).backward()
                    nn.utils.clip_grad_norm_(parameters, p.max_grad_norm)
                    optimizer.step()

    return steps_per_second(p, steps, train)
