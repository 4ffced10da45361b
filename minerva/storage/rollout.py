"""T steps of N environments, time-major, allocated once."""

from __future__ import annotations

import copy
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

Values = NDArray[Any] | Tensor
"""An array, or a tensor that is where it is stored."""


class RolloutBuffer:
    """A rollout being filled, step by step.

    Observations are stored as the policy saw them, and there is one more of them than there are steps: ``obs[t + 1]``
    is what step t returned, and the last one becomes ``obs[0]`` of the next rollout. What the policy takes and gives
    lives where it acts; rewards and flags come from the environments and stay on the CPU until `on` moves them.

    Args:
        steps: T.
        num_envs: N.
        obs_dim: O.
        action_dim: A.
        device: Where the policy acts.
        state_dim: S, length of the state of a policy with a memory.
        obs_dtype: Of observations.

    Attributes:
        first_state: The memory's state before ``obs[0]``, ``[N, S]``.
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
        self.actions = torch.zeros(steps, num_envs, action_dim, device=device)  # [T, N, A]
        self.starts = torch.zeros(steps + 1, num_envs)  # [T+1, N], 1: obs[t] begins an episode
        self.rewards = torch.zeros(steps, num_envs)  # [T, N]
        self.terminated = torch.zeros(steps, num_envs)  # [T, N], 0 or 1
        self.truncated = torch.zeros(steps, num_envs)  # [T, N], 0 or 1
        self.restarting = torch.zeros(steps, num_envs)  # [T, N], 0 or 1
        self.first_state = torch.zeros(num_envs, state_dim, device=device)
        self._views: dict[str, Any] = {}
        self._tie()
        self._state: Values = self._fast(self.first_state)

    def _tie(self) -> None:
        """Hold what is on the CPU as arrays too: to store a step in them takes a tenth of the time."""
        self._views = {name: self._fast(getattr(self, name)) for name in ("obs", "starts", *_STEP_TENSORS)}
        self._each_obs, self._each_start = (list(self._views[name]) for name in ("obs", "starts"))

    def _fast(self, tensor: Tensor) -> Values:
        return tensor.numpy() if tensor.device.type == "cpu" else tensor

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

    @property
    def state(self) -> Tensor:
        """The memory's state before the observations to act on now, ``[N, S]``."""
        return torch.as_tensor(self._state)

    def to_act_on(self) -> tuple[Values, Values, Values]:
        """Give observations, state and where episodes begin as a policy takes them.

        They are arrays where it acts on the CPU, to be left as they are; else tensors, the last of them on the CPU.
        """
        return self._each_obs[self.position], self._state, self._each_start[self.position]

    def begin(self, obs: Tensor) -> None:
        """Start with the first observations of a run, ``[N, O]``."""
        self.position = 0
        self.obs[0] = obs
        self.starts[0] = 1.0
        self.first_state = torch.zeros_like(self.first_state)
        self._state = self._fast(self.first_state)

    def add(
        self,
        actions: Values,
        next_obs: Values,
        rewards: Values,
        terminated: Values,
        truncated: Values,
        restarting: Values,
        state: Values | None = None,
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
        t, views = self.position, self._views
        views["actions"][t] = actions
        views["rewards"][t] = rewards
        views["terminated"][t] = terminated
        views["truncated"][t] = truncated
        views["restarting"][t] = restarting
        views["obs"][t + 1] = next_obs
        views["starts"][t + 1] = restarting
        if state is not None:
            self._state = state
        self.position = t + 1

    def on(self, device: torch.device) -> RolloutBuffer:
        """Give the rollout on a device: itself where it is there already, else a copy to learn from."""
        if self.obs.device == device and self.rewards.device == device:
            return self
        moved = copy.copy(self)
        for name in ("obs", "starts", "first_state", *_STEP_TENSORS):
            setattr(moved, name, getattr(self, name).to(device))
        moved._tie()
        moved._state = moved._fast(self.state.to(device))
        return moved

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
        self._state = self._fast(state["state"].to(self.obs.device))
        for name in _STEP_TENSORS:
            getattr(self, name)[:t] = state[name]


_STEP_TENSORS = ("actions", "rewards", "terminated", "truncated", "restarting")
