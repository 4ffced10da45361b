"""T steps of N environments, time-major, allocated once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Rollout:
    """A rollout being filled, step by step.

    Observations are stored as the policy saw them, and there is one more of them than there are steps: ``obs[t + 1]``
    is what step t returned, and the last one becomes ``obs[0]`` of the next rollout.

    Args:
        steps: T.
        num_envs: N.
        obs_dim: O.
        action_dim: A.
        device: Where the tensors live.
        state_dim: S, length of the state of a policy with a memory.
        obs_dtype: Of observations.

    Attributes:
        first_state: The memory's state before ``obs[0]``, ``[N, S]``.
        state: The memory's state before the observations to act on now, ``[N, S]``.
    """

    def __init__(
        self,
        steps: int,
        num_envs: int,
        obs_dim: int,
        action_dim: int,
        device: torch.device,
        state_dim: int = 0,
        obs_dtype: torch.dtype = torch.float32,
    ) -> None:
        self.steps = steps
        self.position = 0  # the step that is filled next
        self.obs = torch.zeros(steps + 1, num_envs, obs_dim, device=device, dtype=obs_dtype)  # [T+1, N, O]
        self.starts = torch.zeros(steps + 1, num_envs, device=device)  # [T+1, N], 1: obs[t] begins an episode
        self.actions = torch.zeros(steps, num_envs, action_dim, device=device)  # [T, N, A]
        self.rewards = torch.zeros(steps, num_envs, device=device)  # [T, N]
        self.terminated = torch.zeros(steps, num_envs, device=device)  # [T, N], 0 or 1
        self.truncated = torch.zeros(steps, num_envs, device=device)  # [T, N], 0 or 1
        self.restarting = torch.zeros(steps, num_envs, device=device)  # [T, N], 0 or 1
        self.first_state = torch.zeros(num_envs, state_dim, device=device)
        self.state = self.first_state

    @property
    def full(self) -> bool:
        """Whether all T steps are there."""
        return self.position == self.steps

    @property
    def current_obs(self) -> Tensor:
        """The observations to act on now, ``[N, O]``."""
        return self.obs[self.position]

    @property
    def current_starts(self) -> Tensor:
        """Which of them begin an episode, ``[N]``."""
        return self.starts[self.position]

    def begin(self, obs: Tensor) -> None:
        """Start with the first observations of a run, ``[N, O]``."""
        self.position = 0
        self.obs[0] = obs
        self.starts[0] = 1.0
        self.first_state = self.state = torch.zeros_like(self.first_state)

    def add(
        self,
        actions: Tensor,
        next_obs: Tensor,
        rewards: Tensor,
        terminated: Tensor,
        truncated: Tensor,
        restarting: Tensor,
        state: Tensor | None = None,
    ) -> None:
        """Store one step: what was done in `current_obs` and what it led to.

        Args:
            actions: ``[N, A]``.
            next_obs: ``[N, O]``.
            rewards: ``[N]``.
            terminated: ``[N]``.
            truncated: ``[N]``.
            restarting: ``[N]``.
            state: Of the policy's memory after `current_obs`, ``[N, S]``; None without one.
        """
        t = self.position
        self.actions[t] = actions
        self.rewards[t] = rewards
        self.terminated[t] = terminated
        self.truncated[t] = truncated
        self.restarting[t] = restarting
        self.obs[t + 1] = next_obs
        self.starts[t + 1] = self.restarting[t]
        if state is not None:
            self.state = state
        self.position = t + 1

    def carry_over(self) -> None:
        """Begin the next rollout where this one ended."""
        self.obs[0] = self.obs[self.position]
        self.starts[0] = self.starts[self.position]
        self.first_state = self.state
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        """Give the part that is filled."""
        t = self.position
        tensors = {name: getattr(self, name)[:t].clone() for name in _STEP_TENSORS}
        return {
            "position": t,
            "obs": self.obs[: t + 1].clone(),
            "starts": self.starts[: t + 1].clone(),
            "first_state": self.first_state.clone(),
            "state": self.state.clone(),
            **tensors,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a rollout that was saved half filled."""
        self.position = t = state["position"]
        self.obs[: t + 1] = state["obs"]
        self.starts[: t + 1] = state["starts"]
        self.first_state = state["first_state"].to(self.obs.device)
        self.state = state["state"].to(self.obs.device)
        for name in _STEP_TENSORS:
            getattr(self, name)[:t] = state[name]


_STEP_TENSORS = ("actions", "rewards", "terminated", "truncated", "restarting")
