"""Proximal policy optimization (Schulman et al. 2017) in one file, for continuous actions.

    python examples/one_file/ppo.py --env InvertedPendulum-v5 --steps 50000

Read it from top to bottom: hyperparameters, networks, collecting, update, loop. Losses come from `minerva.objectives`,
the rest is PyTorch and Gymnasium. `minerva train ppo` computes the same update; a test holds the two equal.

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

from minerva.objectives import ppo
from minerva.objectives.gaussian import gaussian_entropy, gaussian_log_prob
from minerva.objectives.returns import generalized_advantage_estimation
from minerva.objectives.weighted import weighted_mean


@dataclass(frozen=True)
class Hyperparameters:
    """Hold the settings of a run."""

    env: str = "InvertedPendulum-v5"  # a Gymnasium id
    steps: int = 50_000  # environment steps of the run, over all environments
    seed: int = 1
    # Collecting
    num_envs: int = 8  # N
    rollout_steps: int = 256  # T, steps of each environment between updates
    gamma: float = 0.99  # γ, discount
    gae_lambda: float = 0.95  # λ, decay of the trace in generalized advantage estimation
    # Updating
    hidden_units: int = 64  # in each of the two hidden layers of policy and critic
    learning_rate: float = 3e-4  # falls linearly to 0
    update_epochs: int = 10  # passes over a rollout
    minibatch_size: int = 64
    clip_ratio: float = 0.2  # ε, for the policy and for the critic
    ent_coef: float = 0.0  # weight of the entropy bonus
    vf_coef: float = 0.5  # weight of the value loss
    max_grad_norm: float = 0.5
    target_kl: float = 0.02  # no further epoch once the KL divergence is larger


def mlp(in_dim: int, units: int, out_dim: int, out_gain: float) -> nn.Sequential:
    """Build a network with two hidden tanh layers, orthogonal weights and zero biases."""
    layers = [nn.Linear(in_dim, units), nn.Linear(units, units), nn.Linear(units, out_dim)]
    for layer, gain in zip(layers, (math.sqrt(2), math.sqrt(2), out_gain), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


class Agent(nn.Module):
    """Hold the policy, a Gaussian whose standard deviation does not depend on the state, and the critic."""

    def __init__(self, obs_dim: int, act_dim: int, hp: Hyperparameters) -> None:
        super().__init__()
        self.actor_mean = mlp(obs_dim, hp.hidden_units, act_dim, out_gain=0.01)
        self.actor_logstd = nn.Parameter(torch.zeros(1, act_dim))
        self.critic = mlp(obs_dim, hp.hidden_units, 1, out_gain=1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean and log standard deviation ``[..., A]`` of the policy, and values ``[...]``."""
        mean = self.actor_mean(obs)
        return mean, self.actor_logstd.expand_as(mean), self.critic(obs).squeeze(-1)

    @torch.no_grad()
    def act(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        """Sample actions ``[N, A]``, not clipped to the bounds."""
        mean, log_std, _ = self(obs)
        # LaTeX: a = \mu + \sigma \xi, \quad \xi \sim \mathcal{N}(0, I)
        return mean + log_std.exp() * torch.randn(mean.shape, generator=generator)


class RunningMoments:
    """Keep mean and variance of all vectors seen so far (Chan et al. 1979)."""

    def __init__(self, *shape: int) -> None:
        self.count, self.mean, self.var = 1e-4, np.zeros(shape), np.ones(shape)

    def update(self, x: np.ndarray) -> None:
        """Add vectors ``[B, ...]``."""
        total = self.count + len(x)
        # LaTeX[Chan1979]: \delta = \bar{x}_B - \bar{x}_A
        delta = x.mean(0, dtype=np.float64) - self.mean
        # LaTeX[Chan1979]: n \sigma^2 = n_A \sigma_A^2 + n_B \sigma_B^2 + \frac{n_A n_B}{n} \delta^2
        squares = self.count * self.var + len(x) * x.var(0, dtype=np.float64) + self.count * len(x) / total * delta**2
        # LaTeX[Chan1979]: \bar{x} = \bar{x}_A + \frac{n_B}{n} \delta
        self.mean = self.mean + len(x) / total * delta
        self.count, self.var = total, squares / total


class Rollout(NamedTuple):
    """Hold T steps of N environments."""

    obs: Tensor  # [T+1, N, O], normalized
    actions: Tensor  # [T, N, A]
    rewards: Tensor  # [T, N], normalized
    terminated: Tensor  # [T, N], 0 or 1
    truncated: Tensor  # [T, N], 0 or 1
    weights: Tensor  # [T, N], 0 for a restarting step, else 1


class Collector:
    """Step the environments with the policy, and normalize what they return.

    Where an episode ends at step t, ``obs[t + 1]`` is its last observation (autoreset mode NEXT_STEP). The step after
    that, the restarting step, ignores its action and returns the first observation of the next episode.
    """

    def __init__(self, hp: Hyperparameters) -> None:
        self.hp = hp
        autoreset = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}
        self.envs = gym.make_vec(hp.env, hp.num_envs, vectorization_mode="sync", vector_kwargs=autoreset)
        space = self.envs.single_action_space
        if not isinstance(space, gym.spaces.Box):
            raise ValueError(f"env: must have continuous actions, got {space}.")
        self.low, self.high = space.low, space.high  # [A]
        obs, _ = self.envs.reset(seed=hp.seed)
        self.obs_moments, self.return_moments = RunningMoments(obs.shape[1]), RunningMoments()
        self.obs = self.normalize(obs)  # [N, O]
        self.ended = np.zeros(hp.num_envs, dtype=bool)
        self.discounted_return, self.episode_return = np.zeros(hp.num_envs), np.zeros(hp.num_envs)
        self.episode_returns: list[float] = []  # of all episodes that have ended

    def collect(self, agent: Agent, generator: torch.Generator) -> Rollout:
        """Take T steps in each environment."""
        observations, steps = [self.obs], []
        for _ in range(self.hp.rollout_steps):
            actions = agent.act(self.obs, generator).numpy()
            restarting = self.ended
            obs, rewards, terminated, truncated, _ = self.envs.step(np.clip(actions, self.low, self.high))
            self.ended = terminated | truncated
            self.episode_return += rewards
            self.episode_returns += self.episode_return[self.ended].tolist()
            self.episode_return[self.ended] = 0
            # LaTeX: G_t = r_t + \gamma (1 - e_{t-1}) G_{t-1}
            self.discounted_return = rewards + self.hp.gamma * ~restarting * self.discounted_return
            if not restarting.all():
                self.return_moments.update(self.discounted_return[~restarting])
            # LaTeX[Huang2022]: \hat{r}_t = \mathrm{clip}\left( \frac{r_t}{\sqrt{\mathrm{Var}[G] + \epsilon}},\; -c,\; c \right)
            rewards = np.clip(rewards / np.sqrt(self.return_moments.var + 1e-8), -10, 10)
            self.obs = self.normalize(obs)
            observations.append(self.obs)
            steps.append((actions, rewards, terminated, truncated, ~restarting))
        parts = (torch.as_tensor(np.stack(part)).float() for part in zip(*steps, strict=True))
        return Rollout(torch.stack(observations), *parts)

    def normalize(self, obs: np.ndarray) -> Tensor:
        """Add observations to the moments and normalize them."""
        self.obs_moments.update(obs)
        # LaTeX: \hat{s} = \mathrm{clip}\left( \frac{s - \bar{s}}{\sqrt{\sigma^2 + \epsilon}},\; -c,\; c \right)
        obs = np.clip((obs - self.obs_moments.mean) / np.sqrt(self.obs_moments.var + 1e-8), -10, 10)
        return torch.as_tensor(obs).float()


class Batch(NamedTuple):
    """Hold B = T·N samples."""

    obs: Tensor  # [B, O]
    actions: Tensor  # [B, A]
    log_probs: Tensor  # [B], of the policy that acted
    values: Tensor  # [B], of the critic at that time
    advantages: Tensor  # [B]
    returns: Tensor  # [B]
    weights: Tensor  # [B], 0 for a restarting step, else 1


@torch.no_grad()
def make_batch(agent: Agent, rollout: Rollout, hp: Hyperparameters) -> Batch:
    """Score a rollout with the policy and critic that collected it."""
    mean, log_std, values = agent(rollout.obs)  # [T+1, N, A], [T+1, N, A], [T+1, N]
    log_probs = gaussian_log_prob(mean[:-1], log_std[:-1], rollout.actions)  # [T, N]
    advantages, returns = generalized_advantage_estimation(
        rollout.rewards, values, rollout.terminated, rollout.truncated, hp.gamma, hp.gae_lambda
    )  # [T, N] each
    parts = (rollout.obs[:-1], rollout.actions, log_probs, values[:-1], advantages, returns, rollout.weights)
    return Batch(*(part.flatten(0, 1) for part in parts))


def losses(agent: Agent, batch: Batch, hp: Hyperparameters) -> tuple[Tensor, Tensor]:
    """Compute the loss of a minibatch, and the KL divergence from the policy that acted."""
    w = batch.weights
    mean, log_std, values = agent(batch.obs)
    # LaTeX: \log \rho = \log \pi(a|s) - \log \pi_{\mathrm{old}}(a|s)
    log_ratio = gaussian_log_prob(mean, log_std, batch.actions) - batch.log_probs
    advantages = ppo.normalize_advantages(batch.advantages, w)
    # LaTeX[Schulman2017, eq. 7]: L_{\mathrm{pg}} = \mathbb{E}[\ell_{\mathrm{pg}}]
    policy_loss = weighted_mean(ppo.clipped_policy_loss(log_ratio, advantages, hp.clip_ratio), w)
    # LaTeX: L_V = \mathbb{E}[\ell_V]
    value_loss = weighted_mean(ppo.clipped_value_loss(values, batch.values, batch.returns, hp.clip_ratio), w)
    # LaTeX: H = \mathbb{E}[H(\pi(\cdot|s))]
    entropy = weighted_mean(gaussian_entropy(log_std), w)
    # LaTeX[Schulman2017, eq. 9]: L = L_{\mathrm{pg}} - c_H H + c_V L_V
    loss = policy_loss - hp.ent_coef * entropy + hp.vf_coef * value_loss
    # LaTeX[Schulman2020, k3]: \mathbb{E}[\rho - 1 - \log \rho]
    approx_kl = weighted_mean(ppo.kl_estimate(log_ratio.detach()), w)
    return loss, approx_kl


def update(
    agent: Agent, optimizer: torch.optim.Optimizer, batch: Batch, hp: Hyperparameters, generator: torch.Generator
) -> None:
    """Improve policy and critic on a batch, in shuffled minibatches."""
    for _ in range(hp.update_epochs):
        for rows in torch.randperm(len(batch.weights), generator=generator).split(hp.minibatch_size):
            loss, approx_kl = losses(agent, Batch(*(part[rows] for part in batch)), hp)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), hp.max_grad_norm)
            optimizer.step()
        if approx_kl > hp.target_kl:
            break


def train(hp: Hyperparameters) -> list[float]:
    """Train an agent, print its progress, and return the returns of its episodes."""
    torch.manual_seed(hp.seed)  # the networks' first weights
    generator = torch.Generator().manual_seed(hp.seed)  # action noise, order of minibatches
    collector = Collector(hp)
    agent = Agent(collector.obs.shape[-1], len(collector.low), hp)
    optimizer = torch.optim.Adam(agent.parameters(), lr=hp.learning_rate, eps=1e-5)
    updates = hp.steps // (hp.rollout_steps * hp.num_envs)
    for u in range(updates):
        # LaTeX[Huang2022]: \lambda_u = \lambda_0 \left( 1 - \frac{u}{U} \right)
        optimizer.param_groups[0]["lr"] = hp.learning_rate * (1 - u / updates)
        rollout = collector.collect(agent, generator)
        update(agent, optimizer, make_batch(agent, rollout, hp), hp, generator)
        recent = collector.episode_returns[-20:] or [math.nan]
        print(f"step {(u + 1) * rollout.weights.numel():,}: mean return of the last episodes {np.mean(recent):.1f}")
    return collector.episode_returns


if __name__ == "__main__":
    train(tyro.cli(Hyperparameters))
