"""PPO as LeanRL writes it: CleanRL's loop with what is computed compiled, and no distribution objects on the way.

Acting and the whole gradient step are compiled: loss, gradient, clipping and Adam. The compiler of today takes the
gradient into the same graph, which LeanRL's scripts do not ask it for; that is worth a third of the step, and given
here. LeanRL unrolls its advantage estimation into a compiled function, which takes minutes for 2048 steps; here NumPy
does it, which is no slower.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.peers.cleanrl_style import Agent, gymnasium_envs
from benchmarks.peers.problems import PROBLEMS, Problem, steps_per_second

Act = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


def ppo(steps: int, problem: str) -> float:
    """Train on Gymnasium's environments, with continuous actions."""
    p = PROBLEMS[problem]
    torch.manual_seed(1)
    return steps_per_second(p, steps, Training(p, gymnasium_envs(p)).train)


def log_prob(mean: Tensor, log_std: Tensor, actions: Tensor) -> Tensor:
    """Give the log-density of actions, ``[B]``."""
    scaled = (actions - mean) * torch.exp(-log_std)
    return (-0.5 * scaled * scaled - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)


def faster(functions: list[Act], obs: Tensor) -> Act:
    """Give whichever function takes the least time: for a few rows a compiled one need not."""

    def seconds(function: Act) -> float:
        begin = time.perf_counter()
        for _ in range(300):
            function(obs)
        return time.perf_counter() - begin

    for function in functions:
        seconds(function)
    return min(functions, key=lambda function: min(seconds(function) for _ in range(3)))


class Training:
    """The loop, and what it carries from one update to the next."""

    def __init__(self, p: Problem, envs: Any) -> None:
        self.p, self.envs = p, envs
        obs, _ = envs.reset()
        self.obs = torch.tensor(np.asarray(obs), dtype=torch.float32)
        self.ended = np.zeros(p.num_envs, dtype=np.float32)
        self.agent = Agent(p, self.obs.shape[1], envs.single_action_space)
        # A tensor, which may change without a function being compiled anew.
        self.rate = torch.tensor(p.learning_rate)
        self.optimizer = torch.optim.Adam(self.agent.parameters(), lr=self.rate, eps=1e-5)
        self.parameters = list(self.agent.parameters())
        torch._dynamo.config.trace_autograd_ops = True
        self.gradient_step = torch.compile(self._gradient_step, dynamic=False)
        with torch.no_grad():
            self.act = faster([self._act, torch.compile(self._act, dynamic=False, fullgraph=True)], self.obs)

    def _act(self, obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_std = self.agent.actor(obs), self.agent.log_std
        assert log_std is not None
        noise = torch.randn_like(mean)
        actions = mean + log_std.exp() * noise
        return actions, log_prob(mean, log_std, actions), self.agent.value(obs)

    def train(self, updates: int) -> None:
        """Collect and learn, so many times."""
        for k in range(updates):
            self.rate.fill_((1 - k / updates) * self.p.learning_rate)
            self.learn(self.collect())

    @torch.no_grad()
    def collect(self) -> list[Tensor]:
        """Make a rollout: observations, actions, log-probabilities, values, advantages, returns; ``[B, ...]``."""
        stored: list[tuple[Tensor, ...]] = []
        rewards, endings = [], []
        for _ in range(self.p.rollout_steps):
            actions, log_probs, value = self.act(self.obs)
            stored.append((self.obs, actions, log_probs, value))
            endings.append(self.ended)
            obs, reward, terminated, truncated, _ = self.envs.step(actions.numpy())
            rewards.append(reward)
            self.obs = torch.from_numpy(np.asarray(obs, dtype=np.float32))
            self.ended = np.logical_or(terminated, truncated).astype(np.float32)
        rollout = [torch.stack(parts) for parts in zip(*stored, strict=True)]
        values = np.concatenate([rollout[3].numpy(), self.agent.value(self.obs).numpy()[None]])
        endings.append(self.ended)
        advantages = self.advantages(values, np.stack(rewards), np.stack(endings))
        rollout += [advantages, advantages + rollout[3]]
        return [part.flatten(0, 1) for part in rollout]

    def advantages(self, values: Any, rewards: Any, endings: Any) -> Tensor:
        """Estimate advantages, ``[T, N]``, of values and endings ``[T + 1, N]``."""
        p = self.p
        goes_on = 1 - endings[1:]
        errors = rewards + p.gamma * values[1:] * goes_on - values[:-1]
        decays, trace = p.gamma * p.gae_lambda * goes_on, np.zeros(p.num_envs)
        advantages = np.empty(errors.shape, dtype=np.float32)
        for t in reversed(range(p.rollout_steps)):
            advantages[t] = trace = errors[t] + decays[t] * trace
        return torch.from_numpy(advantages)

    def learn(self, rollout: list[Tensor]) -> None:
        """Make the epochs of an update."""
        for _ in range(self.p.epochs):
            for chosen in torch.randperm(self.p.batch).split(self.p.minibatch):  # type: ignore[no-untyped-call]
                self.gradient_step(*(part[chosen] for part in rollout))

    def _gradient_step(
        self, obs: Tensor, actions: Tensor, log_probs: Tensor, values: Tensor, advantages: Tensor, returns: Tensor
    ) -> None:
        p = self.p
        assert self.agent.log_std is not None
        mean, new_values = self.agent.actor(obs), self.agent.value(obs)
        ratio = (log_prob(mean, self.agent.log_std, actions) - log_probs).exp()
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        policy_loss = torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - p.clip, 1 + p.clip)).mean()
        near = values + (new_values - values).clamp(-p.clip, p.clip)
        value_loss = 0.5 * torch.max((new_values - returns) ** 2, (near - returns) ** 2).mean()
        gradients = torch.autograd.grad(policy_loss + p.value_weight * value_loss, self.parameters)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        nn.utils.clip_grad_norm_(self.parameters, p.max_grad_norm)
        self.optimizer.step()
