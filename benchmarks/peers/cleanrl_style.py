"""PPO in the style of CleanRL: one plain loop, eager torch, normalization in environment wrappers.

The hyperparameters and the order of operations are those of its scripts ppo.py and ppo_continuous_action.py; the code
is our own. The metrics that those scripts log per update are computed here too, but not written.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal

from benchmarks.peers.problems import PROBLEMS, Problem, steps_per_second


def ppo(steps: int, problem: str, pool: bool = False) -> float:
    """Train on Gymnasium's environments, stepped one after the other, or on EnvPool's."""
    p = PROBLEMS[problem]
    torch.manual_seed(1)
    return steps_per_second(p, steps, Training(p, pool_envs(p) if pool else gymnasium_envs(p)).train)


def gymnasium_envs(p: Problem, flatten: bool = False) -> Any:
    """Make environments, each with its own wrappers, optionally with a wrapper that flattens observations."""

    def make() -> gym.Env[Any, Any]:
        env: gym.Env[Any, Any] = gym.make(p.env_id)
        env = gym.wrappers.RecordEpisodeStatistics(gym.wrappers.FlattenObservation(env) if flatten else env)
        if not p.normalize:
            return env
        env = gym.wrappers.NormalizeObservation(gym.wrappers.ClipAction(env))
        env = gym.wrappers.TransformObservation(env, clipped, env.observation_space)
        env = gym.wrappers.NormalizeReward(env, gamma=p.gamma)
        return gym.wrappers.TransformReward(env, clipped)

    return gym.vector.SyncVectorEnv([make] * p.num_envs, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)


def pool_envs(p: Problem) -> Any:
    """Make EnvPool's environments, wrapped all together, which is faster."""
    import envpool
    from gymnasium.wrappers import vector

    env: Any = envpool.make(p.env_id, env_type="gymnasium", num_envs=p.num_envs, seed=1)
    env = vector.RecordEpisodeStatistics(env)
    if not p.normalize:
        return env
    env = vector.NormalizeObservation(vector.ClipAction(env))
    env = vector.TransformObservation(env, clipped, env.single_observation_space)
    return vector.TransformReward(vector.NormalizeReward(env, gamma=p.gamma), clipped)


def clipped(x: Any) -> Any:
    """Clip normalized values to ±10."""
    return np.clip(x, -10, 10)


def layer(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    """Make a linear layer with orthogonal weights."""
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


class Agent(nn.Module):
    """Separate policy and critic networks, and a standard deviation that does not depend on the state."""

    def __init__(self, p: Problem, obs_dim: int, action_space: gym.Space[Any]) -> None:
        super().__init__()
        discrete = isinstance(action_space, gym.spaces.Discrete)
        outputs = int(action_space.n) if discrete else action_space.shape[0]  # type: ignore[attr-defined, index]
        first, second = p.layers
        self.critic = nn.Sequential(
            layer(obs_dim, first), nn.Tanh(), layer(first, second), nn.Tanh(), layer(second, 1, 1.0)
        )
        self.actor = nn.Sequential(
            layer(obs_dim, first), nn.Tanh(), layer(first, second), nn.Tanh(), layer(second, outputs, 0.01)
        )
        self.log_std = None if discrete else nn.Parameter(torch.zeros(outputs))

    def distribution(self, obs: Tensor) -> Distribution:
        """Return the distribution of actions."""
        output = self.actor(obs)
        if self.log_std is None:
            return Categorical(logits=output)
        return Independent(Normal(output, self.log_std.exp().expand_as(output)), 1)

    def value(self, obs: Tensor) -> Tensor:
        """Return V(s)."""
        value: Tensor = self.critic(obs).squeeze(-1)
        return value


class Training:
    """The training loop and its state between updates."""

    def __init__(self, p: Problem, envs: Any) -> None:
        self.p, self.envs = p, envs
        obs, _ = envs.reset()
        self.obs = torch.tensor(np.asarray(obs), dtype=torch.float32)
        self.ended = torch.zeros(p.num_envs)
        space = envs.single_action_space
        self.agent = Agent(p, self.obs.shape[1], space)
        self.optimizer = torch.optim.Adam(self.agent.parameters(), lr=p.learning_rate, eps=1e-5)
        size = (p.rollout_steps, p.num_envs)
        self.stored_obs = torch.zeros(*size, self.obs.shape[1])
        self.stored_actions = torch.zeros(*size, *space.shape)
        self.log_probs, self.rewards, self.endings, self.values = (torch.zeros(size) for _ in range(4))

    def train(self, updates: int) -> None:
        """Collect a rollout and update, the given number of times."""
        for k in range(updates):
            self.optimizer.param_groups[0]["lr"] = (1 - k / updates) * self.p.learning_rate
            self.collect()
            self.learn(*self.advantages())

    def collect(self) -> None:
        """Fill the rollout."""
        for t in range(self.p.rollout_steps):
            self.stored_obs[t], self.endings[t] = self.obs, self.ended
            with torch.no_grad():
                distribution = self.agent.distribution(self.obs)
                action = distribution.sample()
                self.values[t] = self.agent.value(self.obs)
                self.log_probs[t] = distribution.log_prob(action)
            self.stored_actions[t] = action
            obs, reward, terminated, truncated, _ = self.envs.step(action.numpy())
            self.rewards[t] = torch.tensor(reward)
            self.obs = torch.tensor(np.asarray(obs), dtype=torch.float32)
            self.ended = torch.tensor(np.logical_or(terminated, truncated), dtype=torch.float32)

    @torch.no_grad()
    def advantages(self) -> tuple[Tensor, Tensor]:
        """Estimate advantages and returns, backward in time."""
        p, advantages, trace = self.p, torch.zeros_like(self.rewards), torch.zeros(())
        for t in reversed(range(p.rollout_steps)):
            last = t == p.rollout_steps - 1
            goes_on = 1 - (self.ended if last else self.endings[t + 1])
            following = self.agent.value(self.obs) if last else self.values[t + 1]
            error = self.rewards[t] + p.gamma * following * goes_on - self.values[t]
            advantages[t] = trace = error + p.gamma * p.gae_lambda * goes_on * trace
        return advantages, advantages + self.values

    def learn(self, advantages: Tensor, returns: Tensor) -> None:
        """Run the epochs of an update."""
        rollout = [
            self.stored_obs, self.stored_actions, self.log_probs, self.values, advantages, returns
        ]  # fmt: skip
        flat = [part.flatten(0, 1) for part in rollout]
        order, shares = np.arange(self.p.batch), []
        for _ in range(self.p.epochs):
            np.random.shuffle(order)  # noqa: NPY002  # as in those scripts
            for start in range(0, self.p.batch, self.p.minibatch):
                chosen = order[start : start + self.p.minibatch]
                shares.append(self.gradient_step(*(part[chosen] for part in flat)))

    def gradient_step(
        self, obs: Tensor, actions: Tensor, log_probs: Tensor, values: Tensor, advantages: Tensor, returns: Tensor
    ) -> float:
        """Update on a minibatch; returns the fraction of clipped samples."""
        p = self.p
        distribution = self.agent.distribution(obs)
        new_values = self.agent.value(obs)
        log_ratio = distribution.log_prob(actions) - log_probs
        ratio = log_ratio.exp()
        with torch.no_grad():
            ((ratio - 1) - log_ratio).mean()
            share = ((ratio - 1).abs() > p.clip).float().mean().item()
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        policy_loss = torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - p.clip, 1 + p.clip)).mean()
        near = values + (new_values - values).clamp(-p.clip, p.clip)
        value_loss = 0.5 * torch.max((new_values - returns) ** 2, (near - returns) ** 2).mean()
        entropy = distribution.entropy().mean()
        loss = policy_loss - p.entropy_weight * entropy + p.value_weight * value_loss
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.agent.parameters(), p.max_grad_norm)
        self.optimizer.step()
        return share
