"""PPO with the structure of LeanRL's script for continuous actions: as published, and in a trimmed form.

`Published` follows ppo_continuous_action_torchcompile.py: seven wrappers around each environment, a compiled policy on
detached parameters, one TensorDict per step, rollout and minibatches made of complete TensorDicts, and a compiled
gradient step that reads one TensorDict and fills another. Its backward pass breaks the compiled graph, and the metrics
that the script would log are computed in each step. Advantages and returns are in double precision, as Gymnasium's
rewards are. There are three differences:

- LeanRL unrolls its advantage estimation into a compiled function, which takes minutes to compile for 2048 steps. This
  script uses NumPy, which is not slower: for 256 steps of eight environments both take under a millisecond per rollout.
- It detaches the policy's parameters through TensorDict; with recent versions these parameters still require a
  gradient, and the script fails at its first step. This script uses torch.
- No log is written.

`Trimmed` is a faster contender than the published script: tensors without TensorDicts or distribution objects, the
backward pass inside the compiled graph of the loss (which LeanRL does not use), no metrics for a log, and a policy that
is compiled only if that is faster.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributions import Normal

from benchmarks.peers.cleanrl_style import Agent, gymnasium_envs
from benchmarks.peers.problems import PROBLEMS, Problem, steps_per_second

Act = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
MINIBATCH = ["obs", "actions", "log_probs", "values", "advantages", "returns"]
FIGURES = ["kl", "value_loss", "policy_loss", "entropy", "first_order_kl", "clipped_share", "gradient_norm"]
"""Keys of the TensorDicts that the published gradient step reads and returns."""


def ppo(steps: int, problem: str, trimmed: bool = False) -> float:
    """Train on Gymnasium's environments, with continuous actions."""
    p = PROBLEMS[problem]
    torch.manual_seed(1)
    training = Trimmed(p, gymnasium_envs(p)) if trimmed else Published(p, gymnasium_envs(p, flatten=True))
    return steps_per_second(p, steps, training.train)


class GaussianAgent(Agent):
    """An agent for continuous actions."""

    log_std: nn.Parameter

    def evaluate(self, obs: Tensor, actions: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return actions (sampled if none are given), their log-probabilities, the entropies and V(s)."""
        mean = self.actor(obs)
        std = self.log_std.expand_as(mean).exp()
        normal = Normal(mean, std)
        if actions is None:
            actions = mean + std * torch.randn_like(mean)
        log_probs, entropies = normal.log_prob(actions), normal.entropy()  # type: ignore[no-untyped-call]
        return actions, log_probs.sum(-1), entropies.sum(-1), self.value(obs)


class Training(ABC):
    """The common part of both: networks, optimizer, loop and formulas."""

    def __init__(self, p: Problem, envs: Any) -> None:
        self.p, self.envs = p, envs
        obs, _ = envs.reset()
        self.obs = torch.tensor(np.asarray(obs), dtype=torch.float32)
        self.agent = GaussianAgent(p, self.obs.shape[1], envs.single_action_space)
        # A tensor, so that it can change without compiling again.
        self.rate = torch.tensor(p.learning_rate)
        self.optimizer = torch.optim.Adam(self.agent.parameters(), lr=self.rate, eps=1e-5)

    def train(self, updates: int) -> None:
        """Collect a rollout and update, the given number of times."""
        for k in range(updates):
            self.rate.fill_((1 - k / updates) * self.p.learning_rate)
            self.update()

    @abstractmethod
    def update(self) -> None:
        """Collect a rollout and update on it."""

    def orders(self) -> list[Tensor]:
        """Draw the minibatches of an epoch, as row indices of the flattened rollout."""
        return list(torch.randperm(self.p.batch).split(self.p.minibatch))  # type: ignore[no-untyped-call]

    def advantages(self, values: NDArray[Any], rewards: NDArray[Any], endings: NDArray[Any]) -> NDArray[Any]:
        """Estimate advantages, ``[T, N]``, from values and episode ends ``[T + 1, N]``."""
        p = self.p
        goes_on = 1.0 - endings[1:]
        errors = rewards + p.gamma * values[1:] * goes_on - values[:-1]
        decays, trace = p.gamma * p.gae_lambda * goes_on, np.zeros(p.num_envs)
        advantages: NDArray[Any] = np.empty_like(errors)
        for t in reversed(range(p.rollout_steps)):
            advantages[t] = trace = errors[t] + decays[t] * trace
        return advantages

    def losses(
        self, ratio: Tensor, new_values: Tensor, values: Tensor, advantages: Tensor, returns: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the losses of policy and critic, both clipped."""
        clip = self.p.clip
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        policy_loss = torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - clip, 1 + clip)).mean()
        near = values + (new_values - values).clamp(-clip, clip)
        value_loss = 0.5 * torch.max((new_values - returns) ** 2, (near - returns) ** 2).mean()
        return policy_loss, value_loss


class Published(Training):
    """With TensorDicts everywhere, and compiled as in LeanRL."""

    def __init__(self, p: Problem, envs: Any) -> None:
        from tensordict import TensorDict
        from tensordict.nn import TensorDictModule

        super().__init__(p, envs)
        self.tensordict = TensorDict
        self.ended = torch.zeros(p.num_envs, dtype=torch.bool)
        self.episode_returns: deque[float] = deque(maxlen=20)
        acting = GaussianAgent(p, self.obs.shape[1], envs.single_action_space).requires_grad_(False)
        for parameter, learned in zip(acting.parameters(), self.agent.parameters(), strict=True):
            parameter.data = learned.data
        self.act = torch.compile(acting.evaluate)
        module = TensorDictModule(self.gradient_step, in_keys=MINIBATCH, out_keys=FIGURES)
        self.step: Any = torch.compile(module)

    def update(self) -> None:
        """Collect a rollout and update on it."""
        rollout = self.collect().view(-1)
        for _ in range(self.p.epochs):
            for chosen in self.orders():
                self.step(rollout[chosen], tensordict_out=self.tensordict())

    def collect(self) -> Any:
        """Collect a rollout, a TensorDict ``[T, N]``."""
        steps = []
        for _ in range(self.p.rollout_steps):
            actions, log_probs, _, values = self.act(self.obs)
            obs, reward, terminated, truncated, info = self.envs.step(actions.numpy())
            if "final_info" in info:
                self.episode_returns.extend(info["final_info"]["episode"]["r"][info["_final_info"]].tolist())
            # As in LeanRL: the constructor that checks its arguments takes more than twice as long.
            step = self.tensordict._new_unsafe(
                obs=self.obs, ended=self.ended, values=values, actions=actions, log_probs=log_probs,
                rewards=torch.as_tensor(reward), batch_size=(self.p.num_envs,),
            )  # fmt: skip
            steps.append(step)
            self.obs = torch.as_tensor(obs, dtype=torch.float32)
            self.ended = torch.as_tensor(np.logical_or(terminated, truncated))
        rollout: Any = torch.stack(steps)
        with torch.no_grad():
            values = torch.cat([rollout["values"], self.agent.value(self.obs)[None]])
        endings = torch.cat([rollout["ended"], self.ended[None]])
        advantages = self.advantages(values.numpy(), rollout["rewards"].numpy(), endings.numpy())
        rollout["advantages"] = torch.from_numpy(advantages)
        rollout["returns"] = rollout["advantages"] + rollout["values"]
        return rollout

    def gradient_step(
        self, obs: Tensor, actions: Tensor, log_probs: Tensor, values: Tensor, advantages: Tensor, returns: Tensor
    ) -> tuple[Tensor, ...]:
        """Update on a minibatch; returns the metrics."""
        p = self.p
        self.optimizer.zero_grad()
        _, new_log_probs, entropies, new_values = self.agent.evaluate(obs, actions)
        log_ratio = new_log_probs - log_probs
        ratio = log_ratio.exp()
        with torch.no_grad():
            kl, first_order_kl = (ratio - 1 - log_ratio).mean(), -log_ratio.mean()
            clipped_share = ((ratio - 1).abs() > p.clip).float().mean()
        policy_loss, value_loss = self.losses(ratio, new_values, values, advantages, returns)
        entropy = entropies.mean()
        loss = policy_loss - p.entropy_weight * entropy + p.value_weight * value_loss
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self.agent.parameters(), p.max_grad_norm)
        self.optimizer.step()
        return kl, value_loss.detach(), policy_loss.detach(), entropy.detach(), first_order_kl, clipped_share, norm


class Trimmed(Training):
    """With plain tensors, and the backward pass in the compiled graph of the loss."""

    def __init__(self, p: Problem, envs: Any) -> None:
        super().__init__(p, envs)
        self.ended = np.zeros(p.num_envs, dtype=np.bool_)
        self.parameters = list(self.agent.parameters())
        torch._dynamo.config.trace_autograd_ops = True
        self.step = torch.compile(self.gradient_step, dynamic=False)
        with torch.no_grad():
            self.act = faster([self.draw, torch.compile(self.draw, dynamic=False, fullgraph=True)], self.obs)

    def draw(self, obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return actions, their log-probabilities and V(s)."""
        mean, log_std = self.agent.actor(obs), self.agent.log_std
        actions = mean + log_std.exp() * torch.randn_like(mean)
        return actions, log_prob(mean, log_std, actions), self.agent.value(obs)

    def update(self) -> None:
        """Collect a rollout and update on it."""
        rollout = self.collect()
        for _ in range(self.p.epochs):
            for chosen in self.orders():
                self.step(*(part[chosen] for part in rollout))

    @torch.no_grad()
    def collect(self) -> list[Tensor]:
        """Collect a rollout: the parts of a minibatch, ``[B, ...]`` each."""
        stored: list[tuple[Tensor, ...]] = []
        rewards, endings = [], [self.ended]
        for _ in range(self.p.rollout_steps):
            actions, log_probs, values = self.act(self.obs)
            stored.append((self.obs, actions, log_probs, values))
            obs, reward, terminated, truncated, _ = self.envs.step(actions.numpy())
            rewards.append(reward)
            self.obs = torch.from_numpy(np.asarray(obs, dtype=np.float32))
            self.ended = np.logical_or(terminated, truncated)
            endings.append(self.ended)
        rollout = [torch.stack(parts) for parts in zip(*stored, strict=True)]
        values = torch.cat([rollout[3], self.agent.value(self.obs)[None]])
        estimated = self.advantages(values.numpy(), np.stack(rewards), np.stack(endings))
        advantages = torch.from_numpy(estimated.astype(np.float32))
        return [part.flatten(0, 1) for part in (*rollout, advantages, advantages + rollout[3])]

    def gradient_step(
        self, obs: Tensor, actions: Tensor, log_probs: Tensor, values: Tensor, advantages: Tensor, returns: Tensor
    ) -> None:
        """Update on a minibatch."""
        ratio = (log_prob(self.agent.actor(obs), self.agent.log_std, actions) - log_probs).exp()
        policy_loss, value_loss = self.losses(ratio, self.agent.value(obs), values, advantages, returns)
        gradients = torch.autograd.grad(policy_loss + self.p.value_weight * value_loss, self.parameters)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        nn.utils.clip_grad_norm_(self.parameters, self.p.max_grad_norm)
        self.optimizer.step()


def log_prob(mean: Tensor, log_std: Tensor, actions: Tensor) -> Tensor:
    """Return the log-density of actions, ``[B]``."""
    scaled = (actions - mean) * torch.exp(-log_std)
    return (-0.5 * scaled * scaled - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)


def faster(functions: list[Act], obs: Tensor) -> Act:
    """Return the fastest of several functions: for a few rows, a compiled one may be slower."""

    def seconds(function: Act) -> float:
        begin = time.perf_counter()
        for _ in range(300):
            function(obs)
        return time.perf_counter() - begin

    for function in functions:
        seconds(function)
    return min(functions, key=lambda function: min(seconds(function) for _ in range(3)))
