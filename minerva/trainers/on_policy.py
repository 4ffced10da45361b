"""What trainers that learn from whole rollouts share: the arithmetic of rollouts, and what is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from minerva.environments import BatchedEnvironment, RewardNormalizer
from minerva.storage.rollout import RolloutBuffer
from minerva.trainers.accelerate import compiler_available
from minerva.trainers.collector import Act, Collector
from minerva.trainers.run import Run
from minerva.utils.running_norm import RunningNorm


def make_collector(
    env: BatchedEnvironment,
    steps: int,
    action_dim: int,
    device: torch.device,
    act: Act,
    obs_normalizer: nn.Module,
    reward_discount: float | None,
    state_dim: int = 0,
    obs_dtype: torch.dtype = torch.float32,
) -> Collector:
    """Make the collector of a run and the rollout that it fills.

    Args:
        env: Where.
        steps: T.
        action_dim: A.
        device: Where the policy acts.
        act: How to act.
        obs_normalizer: The agent's, on the CPU; anything but a `RunningNorm` means that observations are taken as is.
        reward_discount: γ of the returns that rewards are normalized by; None to take rewards as they are.
        state_dim: S, length of the state of a policy with a memory.
        obs_dtype: Of observations in the rollout.
    """
    return Collector(
        env,
        RolloutBuffer(steps, env.num_envs, env.observation_dim, action_dim, device, state_dim, obs_dtype),
        act,
        obs_normalizer if isinstance(obs_normalizer, RunningNorm) else None,
        None if reward_discount is None else RewardNormalizer(env.num_envs, reward_discount),
    )


SMALL = 300_000
"""Parameters up to which a network acts faster on the CPU than on a GPU, whose launches and transfers take longer."""


def is_small(network: nn.Module) -> bool:
    """Whether a network acts faster on the CPU even where it learns on a GPU."""
    return sum(parameter.numel() for parameter in network.parameters()) <= SMALL


class WithMemory(Protocol):
    """An agent that may have a memory."""

    def empty_state(self, count: int) -> Tensor:
        """Give the state of a memory that has seen nothing, ``[count, S]``."""
        ...

    def choose_on(self, x: Tensor, state: Tensor, deterministic: bool) -> tuple[Tensor, Tensor]:
        """Act in raw observations from a state on, which is returned as it is after."""
        ...


def evaluation_policy(agent: WithMemory) -> Callable[[Tensor], Tensor]:
    """Make the policy for the episodes of one evaluation, all of which begin with its first call."""
    state: Tensor | None = None

    def act(obs: Tensor) -> Tensor:
        nonlocal state
        if state is None:
            state = agent.empty_state(len(obs))
        actions, state = agent.choose_on(obs, state, deterministic=True)
        return actions

    return act


def no_whole_rollout(total_steps: int, batch_size: int) -> str | None:
    """Say why a run of so many steps has no update to make; None if it has."""
    if total_steps >= batch_size:
        return None
    return (
        f"total_steps = {total_steps} is less than rollout_steps * num_envs = {batch_size}: "
        "there is no update to make, so nothing was trained."
    )


def whole_rollouts(total_steps: int, batch_size: int) -> int:
    """Give the updates of a run of so many steps (``batch_size``: N·T)."""
    # LaTeX: U = \left\lfloor \frac{\mathrm{total\_steps}}{N T} \right\rfloor
    return total_steps // batch_size


def settle_compiled(run: Run, wanted: bool) -> bool:
    """Decide whether gradient steps are compiled where that is wanted, and say so."""
    if wanted and not compiler_available():
        run.say("No C++ compiler is installed (Debian: g++), so gradient steps run as they are.")
        return False
    if wanted:
        run.say("Gradient steps are compiled, which takes a while before the first update.")
    return wanted
