"""PPO of Tianshou, built as in its documentation. It scales returns; the others scale rewards."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import torch
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv, VectorEnvNormObs
from tianshou.trainer import OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import (
    ContinuousActorProbabilistic,
    ContinuousCritic,
)
from torch.distributions import Independent, Normal

from benchmarks.peers.problems import PROBLEMS, steps_per_second


def ppo(steps: int, problem: str) -> float:
    """Train with continuous actions."""
    p = PROBLEMS[problem]
    torch.manual_seed(1)
    envs = VectorEnvNormObs(DummyVectorEnv([lambda: gym.make(p.env_id)] * p.num_envs))
    model = gym.make(p.env_id)

    def net() -> Any:
        return Net(state_shape=model.observation_space.shape, hidden_sizes=p.layers, activation=torch.nn.Tanh)

    policy = ProbabilisticActorPolicy(
        actor=ContinuousActorProbabilistic(preprocess_net=net(), action_shape=model.action_space.shape, unbounded=True),
        dist_fn=lambda parameters: Independent(Normal(*parameters), 1),
        action_space=model.action_space,
    )
    algorithm = PPO(
        policy=policy, critic=ContinuousCritic(preprocess_net=net()),
        optim=AdamOptimizerFactory(lr=p.learning_rate, eps=1e-5), eps_clip=p.clip, value_clip=True,
        vf_coef=p.value_weight, ent_coef=p.entropy_weight, max_grad_norm=p.max_grad_norm, gae_lambda=p.gae_lambda,
        gamma=p.gamma, return_scaling=p.normalize,
    )  # fmt: skip
    collector = Collector(algorithm, envs, VectorReplayBuffer(p.batch, p.num_envs))

    def train(updates: int) -> None:
        params = OnPolicyTrainerParams(
            training_collector=collector, max_epochs=1, epoch_num_steps=updates * p.batch,
            collection_step_num_env_steps=p.batch, update_step_num_repetitions=p.epochs, batch_size=p.minibatch,
            verbose=False, show_progress=False,
        )  # fmt: skip
        algorithm.run_training(params)

    return steps_per_second(p, steps, train)
