"""The tasks and PPO settings of the comparisons, the same for all contenders."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """An environment, and PPO's settings for it."""

    env_id: str
    num_envs: int
    rollout_steps: int
    """Steps of each environment between updates."""
    minibatch: int
    epochs: int
    normalize: bool
    """Whether observations and rewards are normalized by running statistics."""
    layers: tuple[int, int] = (64, 64)
    """Hidden layers of policy and of critic, with tanh."""
    learning_rate: float = 3e-4
    clip: float = 0.2
    entropy_weight: float = 0.0
    value_weight: float = 0.5
    max_grad_norm: float = 0.5
    gamma: float = 0.99
    gae_lambda: float = 0.95

    @property
    def batch(self) -> int:
        """Samples per rollout."""
        return self.num_envs * self.rollout_steps

    def __str__(self) -> str:
        return (
            f"{self.env_id}, {self.num_envs} environments x {self.rollout_steps} steps, minibatch {self.minibatch}, "
            f"{self.epochs} epochs, two {self.layers} tanh networks, learning rate {self.learning_rate}, clip "
            f"{self.clip}, entropy {self.entropy_weight}, value {self.value_weight}, gradient norm "
            f"{self.max_grad_norm}, gamma {self.gamma}, lambda {self.gae_lambda}"
        )


PROBLEMS = {
    "ppo-1": Problem("HalfCheetah-v5", 1, 2048, 64, 10, normalize=True),
    "ppo-8": Problem("HalfCheetah-v5", 8, 256, 64, 10, normalize=True),
    "cartpole-8": Problem("CartPole-v1", 8, 128, 256, 4, normalize=False),
    "recurrent-cartpole-8": Problem("CartPole-v1", 8, 128, 4 * 128, 4, normalize=False),
    "pool-64": Problem("HalfCheetah-v5", 64, 64, 1024, 10, normalize=True),
}


def steps_per_second(problem: Problem, steps: int, train: Callable[[int], object]) -> float:
    """Measure the environment steps per second of training, after a first update that compiles and warms up.

    Args:
        problem: Gives the size of a rollout.
        steps: Environment steps to time, rounded down to whole rollouts, at least one.
        train: Collects a number of further rollouts, with one update for each.
    """
    updates = max(1, steps // problem.batch)
    train(1)
    begin = time.perf_counter()
    train(updates)
    return updates * problem.batch / (time.perf_counter() - begin)
