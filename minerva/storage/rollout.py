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
    """

    def __init__(self, steps: int, num_envs: int, obs_dim: int, action_dim: int, device: torch.device) -> None:
        self.steps = steps
        self.position = 0  # the step that is filled next
        self.obs = torch.zeros(steps + 1, num_envs, obs_dim, device=device)  # [T+1, N, O]
        self.actions = torch.zeros(steps, num_envs, action_dim, device=device)  # [T, N, A]
        self.rewards = torch.zeros(steps, num_envs, device=device)  # [T, N]
        self.terminated = torch.zeros(steps, num_envs, device=device)  # [T, N], 0 or 1
        self.truncated = torch.zeros(steps, num_envs, device=device)  # [T, N], 0 or 1
        self.restarting = torch.zeros(steps, num_envs, device=device)  # [T, N], 0 or 1

    @property
    def full(self) -> bool:
        """Whether all T steps are there."""
        return self.position == self.steps

    @property
    def current_obs(self) -> Tensor:
        """The observations to act on now, ``[N, O]``."""
        return self.obs[self.position]

    def begin(self, obs: Tensor) -> None:
        """Start with the first observations of a run, ``[N, O]``."""
        self.position = 0
        self.obs[0] = obs

    def add(
        self,
        actions: Tensor,
        next_obs: Tensor,
        rewards: Tensor,
        terminated: Tensor,
        truncated: Tensor,
        restarting: Tensor,
    ) -> None:
        """Store one step: what was done in `current_obs` and what it led to."""
        t = self.position
        self.actions[t] = actions
        self.rewards[t] = rewards
        self.terminated[t] = terminated
        self.truncated[t] = truncated
        self.restarting[t] = restarting
        self.obs[t + 1] = next_obs
        self.position = t + 1

    def carry_over(self) -> None:
        """Begin the next rollout where this one ended."""
        self.obs[0] = self.obs[self.position]
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        """Give the part that is filled."""
        t = self.position
        tensors = {name: getattr(self, name)[:t].clone() for name in _STEP_TENSORS}
        return {"position": t, "obs": self.obs[: t + 1].clone(), **tensors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a rollout that was saved half filled."""
        self.position = t = state["position"]
        self.obs[: t + 1] = state["obs"]
        for name in _STEP_TENSORS:
            getattr(self, name)[:t] = state[name]


_STEP_TENSORS = ("actions", "rewards", "terminated", "truncated", "restarting")
