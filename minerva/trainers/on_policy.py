"""What trainers that learn from whole rollouts share: the arithmetic of rollouts, and what is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from minerva.environments import BatchedEnvironment, RewardNormalizer
from minerva.storage.rollout import Rollout
from minerva.trainers.accelerate import compiler_available
from minerva.trainers.collector import Collector
from minerva.trainers.run import Run
from minerva.utils.running_norm import RunningNorm


class RolloutSettings(Protocol):
    """The fields of a config that say how rollouts are made."""

    @property
    def num_envs(self) -> int:
        """N."""
        ...

    @property
    def rollout_steps(self) -> int:
        """T."""
        ...

    @property
    def batch_size(self) -> int:
        """T·N."""
        ...

    @property
    def normalize_reward(self) -> bool:
        """Whether rewards are normalised."""
        ...

    @property
    def gamma(self) -> float:
        """Discount."""
        ...


def make_collector(
    env: BatchedEnvironment,
    config: RolloutSettings,
    action_dim: int,
    device: torch.device,
    act: Callable[[Tensor], Tensor],
    obs_normalizer: nn.Module,
) -> Collector:
    """Make the collector of a run and the rollout that it fills.

    Args:
        env: Where.
        config: How many steps of how many environments, and whether rewards are normalised.
        action_dim: A.
        device: Where the rollout lives.
        act: From normalised observations ``[N, O]`` to actions ``[N, A]``.
        obs_normalizer: The agent's; anything but a `RunningNorm` means that observations are taken as they are.
    """
    return Collector(
        env,
        Rollout(config.rollout_steps, config.num_envs, env.observation_dim, action_dim, device),
        act,
        obs_normalizer if isinstance(obs_normalizer, RunningNorm) else None,
        RewardNormalizer(config.num_envs, config.gamma) if config.normalize_reward else None,
    )


def no_whole_rollout(total_steps: int, config: RolloutSettings) -> str | None:
    """Say why a run of so many steps has no update to make; None if it has."""
    if total_steps >= config.batch_size:
        return None
    return (
        f"total_steps = {total_steps} is less than rollout_steps * num_envs = {config.batch_size}: "
        "there is no update to make, so nothing was trained."
    )


def whole_rollouts(total_steps: int, config: RolloutSettings) -> int:
    """Give the updates of a run of so many steps."""
    # LaTeX: U = \left\lfloor \frac{\mathrm{total\_steps}}{N T} \right\rfloor
    return total_steps // config.batch_size


def settle_compiled(run: Run, wanted: bool) -> bool:
    """Decide whether gradient steps are compiled where that is wanted, and say so."""
    if wanted and not compiler_available():
        run.say("No C++ compiler is installed (Debian: g++), so gradient steps run as they are.")
        return False
    if wanted:
        run.say("Gradient steps are compiled, which takes a while before the first update.")
    return wanted
