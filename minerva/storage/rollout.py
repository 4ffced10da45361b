"""The rollout buffer: T steps of N environments, time-major, allocated once."""

from __future__ import annotations

import copy
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from minerva.utils.structure import check, expect

Values = NDArray[Any] | Tensor
"""An array, or a tensor that is where it is stored."""


class RolloutBuffer:
    """Rollout buffer: store T steps of N environments, step by step.

    Observations are stored as the policy saw them, and there is one more of them than there are steps: ``obs[t + 1]``
    is what step t returned, and the last one becomes ``obs[0]`` of the next rollout. Observations and actions are
    where the policy acts; rewards and flags come from the environments and stay on the CPU until `on` moves them.

    Args:
        steps: T.
        num_envs: N.
        obs_dim: O.
        action_dim: A.
        device: Where the policy acts.
        state_dim: S, length of the state of a recurrent policy.
        obs_dtype: Of observations.

    Attributes:
        first_recurrent_state: The recurrent state before ``obs[0]``, ``[N, S]``.
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
        self.episode_starts = torch.zeros(steps + 1, num_envs)  # [T+1, N], 1: obs[t] begins an episode
        self.rewards = torch.zeros(steps, num_envs)  # [T, N]
        self.terminated = torch.zeros(steps, num_envs)  # [T, N], 0 or 1
        self.truncated = torch.zeros(steps, num_envs)  # [T, N], 0 or 1
        self.restarting = torch.zeros(steps, num_envs)  # [T, N], 0 or 1
        self.first_recurrent_state = torch.zeros(num_envs, state_dim, device=device)
        self._views: dict[str, Any] = {}
        self._tie()
        self._recurrent_state: Values = self._fast(self.first_recurrent_state)

    def _tie(self) -> None:
        """Also hold what is on the CPU as arrays: storing a step in them takes a tenth of the time."""
        self._views = {name: self._fast(getattr(self, name)) for name in _TENSORS}
        self._each_obs, self._each_episode_start = (list(self._views[name]) for name in ("obs", "episode_starts"))

    def _fast(self, tensor: Tensor) -> Values:
        return tensor.numpy() if tensor.device.type == "cpu" else tensor

    @property
    def full(self) -> bool:
        """Return whether all T steps are stored."""
        return self.position == self.steps

    @property
    def recurrent_state(self) -> Tensor:
        """The recurrent state before the observations to act on now, ``[N, S]``."""
        return torch.as_tensor(self._recurrent_state)

    def current(self) -> tuple[Values, Values, Values]:
        """Return the observations to act on now, the recurrent state, and where episodes begin.

        They are arrays where the policy acts on the CPU, and must not be changed; otherwise tensors, the last of them
        on the CPU.
        """
        return self._each_obs[self.position], self._recurrent_state, self._each_episode_start[self.position]

    def begin(self, obs: Tensor, episode_starts: Tensor | None = None, recurrent_state: Tensor | None = None) -> None:
        """Start with the first observations of a run, or of a rollout that continues one.

        Args:
            obs: ``[N, O]``.
            episode_starts: Where they begin an episode, ``[N]`` (default: everywhere).
            recurrent_state: Before them, ``[N, S]`` (default: zeros).
        """
        self.position = 0
        self.obs[0] = obs
        self.episode_starts[0] = 1.0 if episode_starts is None else episode_starts
        if recurrent_state is None:
            recurrent_state = torch.zeros_like(self.first_recurrent_state)
        self.first_recurrent_state = recurrent_state.to(self.obs.device)
        self._recurrent_state = self._fast(self.first_recurrent_state)

    def add(
        self,
        actions: Values,
        next_obs: Values,
        rewards: Values,
        terminated: Values,
        truncated: Values,
        restarting: Values,
        recurrent_state: Values | None = None,
        episode_starts: Values | None = None,
    ) -> None:
        """Store one step: the actions taken in the observations that `current` returns, and what they led to.

        Args:
            actions: ``[N, A]``.
            next_obs: ``[N, O]``.
            rewards: ``[N]``.
            terminated: ``[N]``.
            truncated: ``[N]``.
            restarting: ``[N]``.
            recurrent_state: After these observations, ``[N, S]``; None for a policy that is not recurrent.
            episode_starts: Where `next_obs` begins an episode, ``[N]`` (default: after a restarting step).
        """
        t, views = self.position, self._views
        views["actions"][t] = actions
        views["rewards"][t] = rewards
        views["terminated"][t] = terminated
        views["truncated"][t] = truncated
        views["restarting"][t] = restarting
        views["obs"][t + 1] = next_obs
        views["episode_starts"][t + 1] = restarting if episode_starts is None else episode_starts
        if recurrent_state is not None:
            self._recurrent_state = recurrent_state
        self.position = t + 1

    def fill(
        self,
        actions: NDArray[Any],
        next_obs: NDArray[Any],
        rewards: NDArray[Any],
        terminated: NDArray[Any],
        truncated: NDArray[Any],
        restarting: NDArray[Any],
        recurrent_state: NDArray[Any],
    ) -> None:
        """Store all steps from `position` on, which stays where it is; arguments as for `add`, of ``[k, N, ...]``."""
        t, views = self.position, self._views
        views["obs"][t + 1 :] = next_obs
        views["episode_starts"][t + 1 :] = restarting
        given = (actions, rewards, terminated, truncated, restarting)
        for name, values in zip(_STEP_TENSORS, given, strict=True):
            views[name][t:] = values
        self._recurrent_state = recurrent_state

    def on(self, device: torch.device) -> RolloutBuffer:
        """Return the rollout on a device: itself if it is there already, else a copy to learn from."""
        if self.obs.device == device and self.rewards.device == device:
            return self
        moved = copy.copy(self)
        for name in ("first_recurrent_state", *_TENSORS):
            setattr(moved, name, getattr(self, name).to(device))
        moved._tie()
        moved._recurrent_state = moved._fast(self.recurrent_state.to(device))
        return moved

    def carry_over(self) -> None:
        """Start the next rollout where this one ended."""
        self.obs[0] = self.obs[self.position]
        self.episode_starts[0] = self.episode_starts[self.position]
        self.first_recurrent_state = self.recurrent_state
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the part that is filled."""
        state = self._state_at(self.position)
        return {name: part.clone() if isinstance(part, Tensor) else part for name, part in state.items()}

    def _state_at(self, position: int) -> dict[str, Any]:
        recurrent = {name: getattr(self, name) for name in ("first_recurrent_state", "recurrent_state")}
        return {"position": position, **recurrent, **self._filled(position)}

    def check_state(self, state: Any, name: str) -> None:
        """Check that a loaded state is one of this buffer, with any number of steps filled.

        Raises:
            StructureError: It is not.
        """
        position = state.get("position") if isinstance(state, dict) else None
        steps = position if type(position) is int and 0 <= position <= self.steps else 0
        check(state, self._state_at(steps), name)
        expect(position == steps, f"{name}.position", f"must be at most {self.steps}", position)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a rollout that was saved half filled."""
        self.position = state["position"]
        for name, part in self._filled(self.position).items():
            part.copy_(state[name])
        self.first_recurrent_state = state["first_recurrent_state"].to(self.obs.device)
        self._recurrent_state = self._fast(state["recurrent_state"].to(self.obs.device))

    def _filled(self, t: int) -> dict[str, Tensor]:
        """Return views of the part that t steps fill, by name."""
        return {name: getattr(self, name)[: t if name in _STEP_TENSORS else t + 1] for name in _TENSORS}


_STEP_TENSORS = ("actions", "rewards", "terminated", "truncated", "restarting")
_TENSORS = ("obs", "episode_starts", *_STEP_TENSORS)
