"""V-MPO, on-policy maximum a posteriori policy optimization (Song et al. 2020), in one file, for continuous actions.

    python examples/one_file/vmpo.py --env InvertedPendulum-v5 --steps 100000

Read it from top to bottom: hyperparameters, networks, collecting, update, loop. Losses come from `minerva.objectives`,
the rest is PyTorch and Gymnasium. `minerva train vmpo` computes the same update; a test holds the two equal.

Shapes: T time steps, N environments, B samples, O observation entries, A action dimensions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import torch
import tyro
from torch import Tensor, nn
from torch.nn.functional import softplus

from minerva.objectives import vmpo
from minerva.objectives.critic import value_loss
from minerva.objectives.gaussian import gaussian_log_prob
from minerva.objectives.kl import kl_of_means, kl_of_stds
from minerva.objectives.lagrange import alpha_loss, kl_penalty
from minerva.objectives.returns import generalized_advantage_estimation
from minerva.objectives.weighted import weighted_mean


@dataclass(frozen=True)
class Hyperparameters:
    """Hold the settings of a run."""

    env: str = "InvertedPendulum-v5"  # a Gymnasium id
    steps: int = 100_000  # environment steps of the run, over all environments
    seed: int = 1
    # Collecting
    num_envs: int = 16  # N
    rollout_steps: int = 128  # T, steps of each environment between updates
    gamma: float = 0.99  # γ, discount
    gae_lambda: float = 0.95  # λ, decay of the trace in generalized advantage estimation
    # Networks
    hidden_units: int = 64  # in each of the two hidden layers of policy and critic
    log_std_init: float = -0.7  # log standard deviation at the start, before the tanh
    policy_lr: float = 1e-3
    value_lr: float = 3e-3
    max_grad_norm: float = 10.0
    # E-step
    topk_fraction: float = 0.5  # share of the samples that is kept: those with the largest advantages
    epsilon_eta: float = 0.1  # bound on the KL divergence of their weights from equal ones
    temperature_lr: float = 0.1
    # M-step
    m_steps: int = 10  # gradient steps on the whole rollout
    epsilon_mu: float = 0.01  # bounds on the KL divergence from the policy that acted: change of the mean
    epsilon_sigma: float = 2e-5  # and change of the standard deviation
    alpha_lr: float = 1e-2


def linear(in_dim: int, out_dim: int, gain: float) -> nn.Linear:
    """Build a linear layer with orthogonal weights and a zero bias."""
    layer = nn.Linear(in_dim, out_dim)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def encoder(in_dim: int, units: int) -> nn.Sequential:
    """Build two hidden tanh layers."""
    first, second = linear(in_dim, units, math.sqrt(2)), linear(units, units, math.sqrt(2))
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh())


class Agent(nn.Module):
    """Hold the policy, a Gaussian squashed into the bounds by a tanh, the critic, dual variables and optimizers."""

    def __init__(self, obs_dim: int, act_dim: int, hp: Hyperparameters) -> None:
        super().__init__()
        self.policy_encoder, self.value_encoder = (encoder(obs_dim, hp.hidden_units) for _ in range(2))
        self.policy_mean = linear(hp.hidden_units, act_dim, 0.01)
        self.policy_logstd = nn.Parameter(torch.full((1, act_dim), hp.log_std_init))
        self.value_head = linear(hp.hidden_units, 1, 1.0)
        policy = [*self.policy_encoder.parameters(), *self.policy_mean.parameters(), self.policy_logstd]
        value = [*self.value_encoder.parameters(), *self.value_head.parameters()]
        groups = [{"params": policy, "lr": hp.policy_lr}, {"params": value, "lr": hp.value_lr}]
        self.optimizer = torch.optim.Adam(groups, eps=1e-5)
        # The parameters of the dual variables, before the softplus; each variable starts at 1.
        self.log_temperature, self.log_alpha_mu, self.log_alpha_sigma = (
            nn.Parameter(torch.tensor(math.log(math.e - 1))) for _ in range(3)
        )
        self.temperature_optimizer = torch.optim.Adam([self.log_temperature], lr=hp.temperature_lr, eps=1e-5)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha_mu, self.log_alpha_sigma], lr=hp.alpha_lr, eps=1e-5)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean and log standard deviation ``[..., A]`` before the tanh, and values ``[...]``."""
        mean = self.policy_mean(self.policy_encoder(obs))
        log_std = self.policy_logstd.clamp(-20, 2).expand_as(mean)
        return mean, log_std, self.value_head(self.value_encoder(obs)).squeeze(-1)

    @torch.no_grad()
    def act(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        """Sample raw actions ``[N, A]``, before the tanh."""
        mean, log_std, _ = self(obs)
        # LaTeX: u = \mu + \sigma \xi, \quad \xi \sim \mathcal{N}(0, I)
        return mean + log_std.exp() * torch.randn(mean.shape, generator=generator)


class Rollout(NamedTuple):
    """Hold T steps of N environments."""

    obs: Tensor  # [T+1, N, O], normalized
    raw_actions: Tensor  # [T, N, A], before the tanh
    rewards: Tensor  # [T, N]
    terminated: Tensor  # [T, N], 0 or 1
    truncated: Tensor  # [T, N], 0 or 1
    weights: Tensor  # [T, N], 0 for a restarting step, else 1


class Collector:
    """Step the environments with the policy.

    Where an episode ends at step t, ``obs[t + 1]`` is its last observation (autoreset mode NEXT_STEP). The step after
    that, the restarting step, ignores its action and returns the first observation of the next episode.
    """

    def __init__(self, hp: Hyperparameters) -> None:
        self.hp = hp
        autoreset = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}
        envs = gym.make_vec(hp.env, hp.num_envs, vectorization_mode="sync", vector_kwargs=autoreset)
        space = envs.single_action_space
        if not isinstance(space, gym.spaces.Box) or not space.is_bounded():
            raise ValueError(f"env: must have continuous actions with finite bounds, got {space}.")
        self.center, self.half = (space.high + space.low) / 2, (space.high - space.low) / 2  # [A] each
        self.envs = gym.wrappers.vector.NormalizeObservation(envs)
        self.obs = torch.as_tensor(self.envs.reset(seed=hp.seed)[0]).float().clamp(-10, 10)  # [N, O]
        self.ended = np.zeros(hp.num_envs, dtype=bool)
        self.episode_return = np.zeros(hp.num_envs)
        self.episode_returns: list[float] = []  # of all episodes that have ended

    def collect(self, agent: Agent, generator: torch.Generator) -> Rollout:
        """Take T steps in each environment."""
        observations, steps = [self.obs], []
        for _ in range(self.hp.rollout_steps):
            raw_actions = agent.act(self.obs, generator).numpy()
            restarting = self.ended
            # LaTeX: a_j = c_j + h_j \tanh(u_j)
            actions = self.center + self.half * np.tanh(raw_actions)
            obs, rewards, terminated, truncated, _ = self.envs.step(actions)
            self.obs, self.ended = torch.as_tensor(obs).float().clamp(-10, 10), terminated | truncated
            observations.append(self.obs)
            steps.append((raw_actions, rewards, terminated, truncated, ~restarting))
            self.episode_return += rewards
            self.episode_returns += self.episode_return[self.ended].tolist()
            self.episode_return[self.ended] = 0
        parts = (torch.as_tensor(np.stack(part)).float() for part in zip(*steps, strict=True))
        return Rollout(torch.stack(observations), *parts)


class Batch(NamedTuple):
    """Hold B = T·N samples."""

    obs: Tensor  # [B, O]
    raw_actions: Tensor  # [B, A], before the tanh
    old_means: Tensor  # [B, A], of the policy that acted
    old_log_stds: Tensor  # [B, A]
    advantages: Tensor  # [B]
    returns: Tensor  # [B]
    weights: Tensor  # [B], 0 for a restarting step, else 1


@torch.no_grad()
def make_batch(agent: Agent, rollout: Rollout, hp: Hyperparameters) -> Batch:
    """Describe a rollout with the policy and critic that collected it."""
    mean, log_std, values = agent(rollout.obs)  # [T+1, N, A], [T+1, N, A], [T+1, N]
    advantages, returns = generalized_advantage_estimation(
        rollout.rewards, values, rollout.terminated, rollout.truncated, hp.gamma, hp.gae_lambda
    )  # [T, N] each
    parts = (rollout.obs[:-1], rollout.raw_actions, mean[:-1], log_std[:-1], advantages, returns, rollout.weights)
    return Batch(*(part.flatten(0, 1) for part in parts))


def positive(parameter: Tensor) -> Tensor:
    """Map the parameter of a dual variable to the variable."""
    # LaTeX: \eta = \log(1 + e^x) + 10^{-8}
    return softplus(parameter) + 1e-8


def minimize(loss: Tensor, optimizer: torch.optim.Optimizer, max_grad_norm: float = math.inf) -> None:
    """Take a gradient step."""
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], max_grad_norm)
    optimizer.step()


def update(agent: Agent, batch: Batch, hp: Hyperparameters) -> None:
    """Weigh the samples (E-step), then fit policy and critic to them (M-step)."""
    # E-step: keep the better part of the samples, and weigh it
    w = batch.weights
    temperature = positive(agent.log_temperature)
    advantages = vmpo.normalize_advantages(batch.advantages, w)
    scaled = vmpo.scale_advantages(advantages, w, temperature)
    kept = vmpo.select_top(scaled, w, hp.topk_fraction).weights  # [B], 0 or 1
    psi, temperature_loss = vmpo.e_step(scaled, kept, torch.ones_like(w), temperature, hp.epsilon_eta)  # [B], scalar
    minimize(temperature_loss, agent.temperature_optimizer)
    agent.log_temperature.data.clamp_(min=-18)  # below it the gradient of the softplus vanishes

    # M-step: one step on the multipliers, then one on policy and critic
    for _ in range(hp.m_steps):
        mean, log_std, values = agent(batch.obs)  # [B, A], [B, A], [B]
        # LaTeX[Song2020, app. C]: D_\mu = \mathbb{E}\left[ \sum_j D_{\mu,t,j} \;\middle|\; \bar{w}_t > 0 \right]
        kl_mu = weighted_mean(kl_of_means(mean, batch.old_means, batch.old_log_stds).sum(-1), kept)
        # LaTeX[Song2020, app. C]: D_\sigma = \mathbb{E}\left[ \sum_j D_{\sigma,t,j} \;\middle|\; \bar{w}_t > 0 \right]
        kl_sigma = weighted_mean(kl_of_stds(log_std, batch.old_log_stds).sum(-1), kept)
        alpha_mu_loss = alpha_loss(positive(agent.log_alpha_mu), kl_mu, hp.epsilon_mu)
        alpha_sigma_loss = alpha_loss(positive(agent.log_alpha_sigma), kl_sigma, hp.epsilon_sigma)
        # LaTeX[Song2020, eq. 5]: L_\alpha = \alpha_\mu (\epsilon_\mu - D_\mu) + \alpha_\sigma (\epsilon_\sigma - D_\sigma)
        minimize(alpha_mu_loss + alpha_sigma_loss, agent.alpha_optimizer)
        agent.log_alpha_mu.data.clamp_(min=-18)
        agent.log_alpha_sigma.data.clamp_(min=-18)

        # The tanh changes the density of an action by a factor that no parameter changes: it has no gradient.
        policy_loss = vmpo.weighted_nll(gaussian_log_prob(mean, log_std, batch.raw_actions), psi)
        alpha_mu, alpha_sigma = positive(agent.log_alpha_mu), positive(agent.log_alpha_sigma)
        # LaTeX: P = \alpha_\mu D_\mu + \alpha_\sigma D_\sigma
        penalty = kl_penalty(alpha_mu, kl_mu) + kl_penalty(alpha_sigma, kl_sigma)
        # LaTeX[Song2020, eq. 6]: L_V = \mathbb{E}\left[ \tfrac12 (V - R)^2 \right]
        critic_loss = weighted_mean(value_loss(values, batch.returns), w)
        # LaTeX: L = L_{\mathrm{NLL}} + P + L_V
        minimize(policy_loss + penalty + critic_loss, agent.optimizer, hp.max_grad_norm)


def train(hp: Hyperparameters) -> list[float]:
    """Train an agent, print its progress, and return the returns of its episodes."""
    torch.manual_seed(hp.seed)  # the networks' first weights
    generator = torch.Generator().manual_seed(hp.seed)  # action noise
    collector = Collector(hp)
    agent = Agent(collector.obs.shape[-1], len(collector.center), hp)
    batch_size = hp.rollout_steps * hp.num_envs
    for step in range(batch_size, hp.steps + 1, batch_size):
        update(agent, make_batch(agent, collector.collect(agent, generator), hp), hp)
        recent = collector.episode_returns[-20:] or [math.nan]
        print(f"step {step:,}: mean return of the last episodes {np.mean(recent):.1f}")
    return collector.episode_returns


if __name__ == "__main__":
    train(tyro.cli(Hyperparameters))
