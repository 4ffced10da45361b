"""The actions of running episodes, from which a resumed run brings its environments back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minerva.utils.structure import check, expect, list_of

BLOCK_BYTES = 2**20
"""Size of the block that holds the newest actions of all environments."""
TOTAL_BYTES = 2**26
"""Size that the actions of all running episodes together may have, as long as each may have MIN_LIMIT of them."""
MIN_LIMIT, MAX_LIMIT = 10_000, 1_000_000
"""Fewest and most actions at which an episode counts as too long to be replayed."""


class ActionHistory:
    """Keep the actions of each environment since its episode began.

    A step is one write into a block of the newest actions of all environments. A full block is cut into one segment per
    environment, which holds only that environment's running episode and is never written again. An episode that becomes
    too long is dropped: it cannot be replayed, and costs nothing from then on.

    Args:
        num_envs: N.
        action_dim: A.

    Attributes:
        limit: Actions after which an episode is dropped.
    """

    def __init__(self, num_envs: int, action_dim: int) -> None:
        step_bytes = 4 * num_envs * max(1, action_dim)
        self.limit = min(max(TOTAL_BYTES // step_bytes, MIN_LIMIT), MAX_LIMIT)
        rows = min(max(BLOCK_BYTES // step_bytes, 16), 1024)
        self._block = np.zeros((rows, num_envs, action_dim), dtype=np.float32)  # [rows, N, A]
        self._filled = 0
        self._starts = [0] * num_envs  # where in the block the running episode's actions begin
        self._segments: list[list[NDArray[np.float32]]] = [[] for _ in range(num_envs)]  # before the block
        self._lengths = [0] * num_envs  # of these segments together
        self._continued: list[list[int]] = [[] for _ in range(num_envs)]
        self._dropped = [False] * num_envs

    def add(self, actions: NDArray[np.float32], started: Sequence[int] = (), continued: Sequence[int] = ()) -> None:
        """Store one step's actions ``[N, A]``.

        Args:
            actions: As the environments received them.
            started: Environments whose episode began with this step: their actions were ignored.
            continued: Environments whose game went on with this step, by a reset without a seed.
        """
        if self._filled == len(self._block):
            self._cut_block()
        self._block[self._filled] = actions
        for i in continued:
            self._continued[i].append(self._lengths[i] + self._filled - self._starts[i])
        self._filled += 1
        for i in started:
            self._starts[i], self._lengths[i] = self._filled, 0
            self._segments[i], self._continued[i] = [], []
            self._dropped[i] = False

    def _cut_block(self) -> None:
        for i, start in enumerate(self._starts):
            if not self._dropped[i]:
                self._segments[i].append(self._block[start : self._filled, i].copy())
                self._lengths[i] += self._filled - start
                if self._lengths[i] > self.limit:
                    self._dropped[i], self._segments[i], self._continued[i] = True, [], []
            self._starts[i] = 0
        self._filled = 0

    def episode(self, i: int) -> NDArray[np.float32] | None:
        """Return the actions of environment i since its episode began, ``[T, A]``; None if it was too long."""
        if self._dropped[i]:
            return None
        return np.concatenate([*self._segments[i], self._block[self._starts[i] : self._filled, i]])

    def continued(self, i: int) -> list[int]:
        """Return at which of these actions the game went on by a reset without a seed."""
        return list(self._continued[i])

    def state_dict(self) -> dict[str, Any]:
        """Return all episodes in one tensor, their lengths (-1: too long), and where games went on."""
        episodes = [self.episode(i) for i in range(len(self._starts))]
        kept = [episode for episode in episodes if episode is not None]
        return {
            "actions": torch.from_numpy(np.concatenate([self._block[:0, 0], *kept])),
            "action_counts": [-1 if episode is None else len(episode) for episode in episodes],
            "continued": [list(places) for places in self._continued],
        }

    def state_form(self) -> dict[str, Any]:
        """Return what `state_dict` returns, with checks where loaded values may have another form."""
        counts = [-1] * len(self._starts)
        return {"actions": self._check_actions, "action_counts": counts, "continued": self._check_places}

    def _check_actions(self, actions: Any, name: str) -> None:
        count = len(actions) if isinstance(actions, Tensor) and actions.ndim == 2 else 0
        check(actions, torch.empty(count, self._block.shape[-1]), name)

    def _check_places(self, continued: Any, name: str) -> None:
        check(continued, [list_of(0)] * len(self._starts), name)

    def check_lengths(self, state: dict[str, Any], name: str) -> None:
        """Check that a loaded state, whose parts have the right form, holds the actions of each of its episodes.

        Raises:
            StructureError: It does not.
        """
        total = sum(max(count, 0) for count in state["action_counts"])
        expect(len(state["actions"]) == total, f"{name}.actions", f"must be {total}", state["actions"])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        actions, counts = state["actions"].numpy(), state["action_counts"]
        ends = np.cumsum([max(count, 0) for count in counts])
        if len(counts) != len(self._starts) or ends[-1] != len(actions):
            raise ValueError(f"actions: must be {int(ends[-1])} of {len(self._starts)} environments.")
        self._filled, self._starts = 0, [0] * len(counts)
        self._lengths = [max(count, 0) for count in counts]
        self._dropped = [count < 0 for count in counts]
        self._segments = [[actions[end - n : end].copy()] for end, n in zip(ends, self._lengths, strict=True)]
        self._continued = [list(places) for places in state["continued"]]


def without_older_actions(state: dict[str, Any], steps: int) -> dict[str, Any]:
    """Return a state of environments with no more than the newest actions of each episode.

    Args:
        state: What a `BatchedEnvironment` returns; one without actions stays as it is.
        steps: How many steps they have taken since the state before.
    """
    if "action_counts" not in state:
        return state
    whole = state["actions"].split([max(count, 0) for count in state["action_counts"]])
    return {**state, "actions": torch.cat([actions[-steps:] for actions in whole])}


class EpisodeActions:
    """Put the actions of running episodes together again from states that lack the older ones."""

    def __init__(self) -> None:
        self._episodes: list[list[Tensor]] = []

    def begin(self, state: dict[str, Any]) -> None:
        """Begin with a whole state."""
        if "action_counts" in state:
            counts = [max(count, 0) for count in state["action_counts"]]
            self._episodes = [[actions] for actions in state["actions"].split(counts)]

    def add(self, state: dict[str, Any], steps: int) -> None:
        """Add what `without_older_actions` has left of the next state, so many steps later."""
        counts: list[int] = state.get("action_counts", [])
        parts = state["actions"].split([min(max(count, 0), steps) for count in counts]) if counts else ()
        for i, (count, actions) in enumerate(zip(counts, parts, strict=True)):
            if count <= steps:  # the episode has begun since
                self._episodes[i] = []
            self._episodes[i].append(actions)

    def whole(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the newest state with all actions."""
        if "action_counts" not in state:
            return state
        self._episodes = [[torch.cat(parts)] if parts else [] for parts in self._episodes]
        return {**state, "actions": torch.cat([part for parts in self._episodes for part in parts])}
