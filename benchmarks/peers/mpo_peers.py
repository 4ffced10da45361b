"""The MPO update of Minerva and of plain PyTorch, with the same networks, batch, samples and settings."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import softplus

from benchmarks.updates import BATCH, SAMPLES, SIZES, milliseconds, mpo_update
from minerva.trainers.mpo.config import MPOConfig

OBS_DIM, ACT_DIM = 17, 6  # of HalfCheetah-v5
SETTINGS = MPOConfig()


def updates_per_second(call: Callable[[], Any], updates: int) -> float:
    """Measure updates per second: five to warm up, then the median of the given number."""
    return 1e3 / milliseconds({"": call}, "cpu", updates)[""]


def minerva(updates: int, size: str, compiled: bool, **fields: Any) -> float:
    """Measure Minerva's update, eager or compiled, with torch's default number of threads."""
    return updates_per_second(mpo_update("cpu", size, compiled, **fields), updates)


def plain(updates: int, size: str) -> float:
    """Measure an update written as in Tonic."""
    torch.manual_seed(0)
    shapes = ((OBS_DIM,), (ACT_DIM,), (), (), (OBS_DIM,))
    batch = [torch.rand(BATCH, *shape) for shape in shapes]
    agent = PlainMPO(**SIZES[size])
    return updates_per_second(lambda: agent.update(*batch), updates)


def torso(inputs: int, sizes: tuple[int, ...]) -> nn.Sequential:
    """Make hidden layers: a first one with layer normalization, then ELU."""
    layers: list[nn.Module] = [nn.Linear(inputs, sizes[0]), nn.LayerNorm(sizes[0]), nn.Tanh()]
    for before, units in pairwise(sizes):
        layers += [nn.Linear(before, units), nn.ELU()]
    return nn.Sequential(*layers)


class PlainPolicy(nn.Module):
    """A Gaussian policy."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.torso = torso(OBS_DIM, sizes)
        self.mean, self.log_std = nn.Linear(sizes[-1], ACT_DIM), nn.Linear(sizes[-1], ACT_DIM)

    def forward(self, obs: Tensor) -> Normal:
        """Return the distribution of raw actions."""
        features = self.torso(obs)
        return Normal(self.mean(features), self.log_std(features).clamp(-20, 2).exp())


class PlainCritic(nn.Module):
    """An action-value function Q(s, a)."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = nn.Sequential(*torso(OBS_DIM + ACT_DIM, sizes), nn.Linear(sizes[-1], 1))

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Return the values of executed actions, ``[B]``."""
        values: Tensor = self.layers(torch.cat([obs, actions.clamp(-1, 1)], dim=-1)).squeeze(-1)
        return values


class PlainMPO:
    """MPO with separate forward passes, `torch.distributions` and `torch.optim`, as in Tonic."""

    def __init__(self, policy_layer_sizes: tuple[int, ...], critic_layer_sizes: tuple[int, ...]) -> None:
        c = SETTINGS
        self.policy, self.critic = PlainPolicy(policy_layer_sizes), PlainCritic(critic_layer_sizes)
        self.policy_target = copy.deepcopy(self.policy).requires_grad_(False)
        self.critic_target = copy.deepcopy(self.critic).requires_grad_(False)
        assert c.init_log_alpha_mean is not None and c.init_log_alpha_stddev is not None
        self.log_temperature = nn.Parameter(torch.tensor(c.temperature_init))
        self.log_alpha_mean = nn.Parameter(torch.full((ACT_DIM,), c.init_log_alpha_mean))
        self.log_alpha_std = nn.Parameter(torch.full((ACT_DIM,), c.init_log_alpha_stddev))
        self.duals = [self.log_temperature, self.log_alpha_mean, self.log_alpha_std]
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=c.q_lr, eps=1e-5)
        self.policy_optimizer = torch.optim.Adam(self.policy.parameters(), lr=c.policy_lr, eps=1e-5)
        self.dual_optimizer = torch.optim.Adam(self.duals, lr=c.lambda_lr, eps=1e-5)
        self.updates = 0

    def update(self, obs: Tensor, actions: Tensor, rewards: Tensor, discounts: Tensor, next_obs: Tensor) -> Tensor:
        """Update critic, multipliers and policy."""
        if self.updates % SETTINGS.target_networks_update_period == 0:
            self.policy_target.load_state_dict(self.policy.state_dict())
            self.critic_target.load_state_dict(self.critic.state_dict())
        self.updates += 1
        self.improve_critic(obs, actions, rewards, discounts, next_obs)
        return self.improve_policy(obs)

    def sample(self, obs: Tensor) -> tuple[Normal, Tensor, Tensor]:
        """Sample actions of the target policy, ``[S, B, A]``, and compute their values, ``[S, B]``."""
        distribution = self.policy_target(obs)
        actions = distribution.sample((SAMPLES,))
        rows = obs.expand(SAMPLES, *obs.shape).flatten(0, 1)
        values = self.critic_target(rows, actions.flatten(0, 1)).view(SAMPLES, len(obs))
        return distribution, actions, values

    def improve_critic(
        self, obs: Tensor, actions: Tensor, rewards: Tensor, discounts: Tensor, next_obs: Tensor
    ) -> None:
        """Fit the critic to the values of the next states."""
        with torch.no_grad():
            targets = rewards + discounts * self.sample(next_obs)[2].mean(0)
        self.critic_optimizer.zero_grad()
        nn.functional.mse_loss(self.critic(obs, actions), targets).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.critic.parameters(), SETTINGS.max_grad_norm or math.inf)
        self.critic_optimizer.step()

    def improve_policy(self, obs: Tensor) -> Tensor:
        """Do the E-step, and the decoupled M-step with its multipliers."""
        c = SETTINGS
        with torch.no_grad():
            target, actions, values = self.sample(obs)
        distribution = self.policy(obs)
        temperature, alpha_mean, alpha_std = (softplus(x) + 1e-8 for x in self.duals)
        weights = torch.softmax(values / temperature.detach(), dim=0)
        spread = torch.logsumexp(values / temperature, dim=0).mean() - math.log(SAMPLES)
        temperature_loss = temperature * (c.kl_epsilon + spread)
        moved = Normal(distribution.mean, target.stddev)  # only the mean is new; below, only the standard deviation
        widened = Normal(target.mean, distribution.stddev)
        of_moved: Tensor = moved.log_prob(actions).sum(-1)  # type: ignore[no-untyped-call]
        of_widened: Tensor = widened.log_prob(actions).sum(-1)  # type: ignore[no-untyped-call]
        fit = -(weights * (of_moved + of_widened)).sum(0).mean()
        kl_mean, kl_std = kl_divergence(target, moved).mean(0), kl_divergence(target, widened).mean(0)
        penalty = (alpha_mean.detach() * kl_mean + alpha_std.detach() * kl_std).sum()
        alpha_loss = (
            alpha_mean * (c.mstep_kl_epsilon - kl_mean.detach()) + alpha_std * (c.epsilon_stddev - kl_std.detach())
        ).sum()
        loss = fit + penalty + alpha_loss + temperature_loss
        self.policy_optimizer.zero_grad()
        self.dual_optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.policy.parameters(), c.max_grad_norm or math.inf)
        nn.utils.clip_grad_norm_(self.duals, c.max_grad_norm or math.inf)
        self.policy_optimizer.step()
        self.dual_optimizer.step()
        return loss.detach()
