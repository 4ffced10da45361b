"""The replay buffer: a time-major ring of the newest transitions of N environments, allocated once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from minerva.storage import segments
from minerva.utils.structure import check, list_of

# Bits of the flags of a slot
_TERMINATED = np.uint8(1)
_ENDED = np.uint8(2)  # terminated or truncated
_USABLE = np.uint8(4)  # a real transition with finite values

GROWTH = 64
"""The ring grows by this fraction of its length when restarting steps fill it."""
MAX_STRETCH, MIN_SLOTS = 4, 64
"""It grows to so many slots per transition and environment, and always to at least MIN_SLOTS. Episodes of one step need
two; more are needed only where most transitions are not finite, and then the oldest ones are evicted early."""


class Transitions(NamedTuple):
    """A batch from the replay buffer for n-step targets, each over k ≤ n steps."""

    obs: NDArray[np.float32]  # [B, O]
    actions: NDArray[np.float32]  # [B, A], raw: before clipping to the box
    rewards: NDArray[np.float32]  # [B], discounted sum over the k steps
    discounts: NDArray[np.float32]  # [B], γ^k, or 0 where the last step terminated
    next_obs: NDArray[np.float32]  # [B, O], after the k steps


class Windows(NamedTuple):
    """Sequences from the replay buffer: T successive steps of one episode, the last one repeated after its end."""

    obs: NDArray[np.float32]  # [B, T, O]
    actions: NDArray[np.float32]  # [B, T, A], raw
    log_probs: NDArray[np.float32]  # [B, T], of the raw actions under the policy that acted
    rewards: NDArray[np.float32]  # [B, T], 0 after the last real step
    terminated: NDArray[np.float32]  # [B, T], 0 or 1
    ended: NDArray[np.float32]  # [B, T], 1 from the end of the episode, or from the last real step before T
    next_obs: NDArray[np.float32]  # [B, T, O]


class ReplayBuffer:
    """Replay buffer: store the newest transitions of N environments and sample them uniformly.

    Each observation is stored once: slot t of an environment holds ``obs[t]`` and the action taken there, and its
    successor is the observation in slot t + 1. The slot at the head of the ring holds the current observation.
    A restarting step takes a slot (its observation is the last of the old episode) and is never sampled. A transition
    with a value that is not finite is never sampled either: it is counted in `dropped`, and windows stop before it.
    Neither counts towards the capacity: the ring starts with a slot per transition and grows where they take slots.

    Args:
        capacity: Number of transitions of all environments that can be sampled, rounded down to a multiple of N.
        num_envs: N.
        obs_dim: O.
        action_dim: A.
        log_probs: Whether to store log-probabilities of the actions, which `sample_windows` needs.

    Attributes:
        capacity: Number of transitions that it can hold, restarting steps not counted.
        length: Slots of the ring, L: the transitions, restarting steps, and the current observation.
        dropped: Number of real transitions added so far that were not finite.

    Raises:
        ValueError: The capacity is smaller than the number of environments.
        MemoryError: There is not enough memory.
    """

    def __init__(self, capacity: int, num_envs: int, obs_dim: int, action_dim: int, log_probs: bool = False) -> None:
        if capacity < num_envs:
            raise ValueError(
                f"capacity: must be at least the number of environments ({num_envs}), got {capacity}; make it larger."
            )
        self.num_envs = n = num_envs
        self.length = capacity // n + 1
        self.capacity = (self.length - 1) * n
        self._max_length = max(MAX_STRETCH * self.length, MIN_SLOTS)
        self._obs_dim, self._action_dim, self._stores_log_probs = obs_dim, action_dim, log_probs
        self._allocate(self.length)
        # A ring of the usable rows, oldest first: a sample is one random number and one look-up, even if few slots are
        # usable.
        self._queue = np.zeros(self.capacity, np.int64)
        self._finite = np.ones(n, np.bool_)  # [N]: whether the current observations are
        self.clear()

    def _allocate(self, length: int) -> None:
        n, obs_dim, action_dim = self.num_envs, self._obs_dim, self._action_dim
        self.length = length
        # Untouched pages of zeros use no RAM: it grows as the buffer fills.
        self.obs = np.zeros((length, n, obs_dim), np.float32)  # [L, N, O]
        self.actions = np.zeros((length, n, action_dim), np.float32)  # [L, N, A]
        self.log_probs = np.zeros((length, n), np.float32) if self._stores_log_probs else None  # [L, N]
        self.rewards = np.zeros((length, n), np.float32)  # [L, N]
        self.flags = np.zeros((length, n), np.uint8)  # [L, N]; 0 at the head

    def clear(self) -> None:
        """Remove all transitions."""
        self.dropped = 0
        self.flags[...] = 0
        self._queue_start = 0
        self._usable = 0  # length of the queue
        self._steps = 0  # slots filled so far, evicted ones too
        self._shift = 0  # the slot of step t is (t + shift) % L
        self._saved: dict[Path, list[segments.Entry]] = {}  # segments of this buffer in each folder

    def __len__(self) -> int:
        return self._usable

    @property
    def nbytes(self) -> int:
        """Return the RAM of the buffer in bytes, once its slots are filled."""
        return self._queue.nbytes + sum(array.nbytes for array in self._arrays().values())

    @property
    def current_obs(self) -> NDArray[np.float32]:
        """Return the current observations, to act on next, ``[N, O]``."""
        current: NDArray[np.float32] = self.obs[self._head]
        return current

    @property
    def _head(self) -> int:
        return (self._steps + self._shift) % self.length

    # Filling

    def begin(self, obs: ArrayLike) -> None:
        """Start an episode in every environment, with first observations ``[N, O]``.

        Stored transitions stay. The newest ones keep their successors and are cut off from what follows.
        """
        if self._steps > 0:
            self._advance()
        self._store_pending(obs)

    def add(
        self,
        actions: ArrayLike,
        next_obs: ArrayLike,
        rewards: ArrayLike,
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        restarting: NDArray[np.bool_],
        log_probs: ArrayLike | None = None,
    ) -> int:
        """Store one step of all environments, taken from `current_obs`.

        Returns:
            Number of new transitions that can be sampled: the real ones that are finite.

        Raises:
            ValueError: `log_probs` is missing, or the buffer was built without log-probabilities.
        """
        if (log_probs is None) != (self.log_probs is None):
            raise ValueError(
                f"log_probs: must be given if and only if the replay buffer was built with log_probs=True, got "
                f"{'none' if log_probs is None else 'some'}."
            )
        slot = self._head
        with np.errstate(over="ignore"):  # values too large for float32 become infinite and are dropped
            following = np.asarray(next_obs).astype(np.float32)
            self.actions[slot] = actions
            self.rewards[slot] = rewards
            if self.log_probs is not None:
                self.log_probs[slot] = log_probs
        next_finite = np.isfinite(following).all(axis=1)
        finite = self._finite & next_finite & np.isfinite(self.rewards[slot])
        finite &= np.isfinite(self.actions[slot]).all(axis=1)
        if self.log_probs is not None:
            finite &= np.isfinite(self.log_probs[slot])
        usable = finite & ~restarting
        self.flags[slot] = terminated * _TERMINATED + (terminated | truncated) * _ENDED + usable * _USABLE
        rows = np.flatnonzero(usable)
        self.dropped += self.num_envs - len(rows) - int(np.count_nonzero(restarting))
        self._evict(self._usable + len(rows) - self.capacity)
        back = self._queue_start + self._usable
        self._queue[np.arange(back, back + len(rows)) % self.capacity] = rows + slot * self.num_envs
        self._usable += len(rows)
        self._advance()
        self.obs[self._head], self._finite[...] = following, next_finite
        return len(rows)

    def _evict(self, count: int) -> None:
        if count > 0:
            self._queue_start = (self._queue_start + count) % self.capacity
            self._usable -= count

    def _advance(self) -> None:
        """Advance the head; if the oldest transition is in its way, make the ring longer."""
        if self._steps + 1 - self._oldest() == self.length:
            if self.length < self._max_length:
                self._grow(min(self.length + max(self.length // GROWTH, 1), self._max_length))
            else:
                slots = self._queue.take(np.arange(self.num_envs) + self._queue_start, mode="wrap") // self.num_envs
                self._evict(int((slots[: self._usable] == slots[0]).sum()))
        self._steps += 1
        self.flags[self._head] = 0

    def _oldest(self) -> int:
        """Return the step of the oldest transition that can be sampled; the current step if there is none."""
        if self._usable == 0:
            return self._steps
        return self._steps - (self._head - int(self._queue[self._queue_start]) // self.num_envs) % self.length

    def _grow(self, length: int) -> None:
        """Make a full ring longer; the order of the queue, and so every sample, stays."""
        head, added = self._head, length - self.length
        for name in list(self._arrays()):  # one at a time: for a moment, the RAM of a second copy of it is needed
            array = getattr(self, name)
            longer = np.zeros((length, *array.shape[1:]), array.dtype)
            longer[: head + 1] = array[: head + 1]
            longer[head + 1 + added :] = array[head + 1 :]  # the oldest slots, which follow the head
            setattr(self, name, longer)
        moved = self._queue >= (head + 1) * self.num_envs
        np.add(self._queue, added * self.num_envs, out=self._queue, where=moved)
        self.length, self._shift = length, (head - self._steps) % length

    def _store_pending(self, obs: ArrayLike) -> None:
        pending = self.current_obs
        with np.errstate(over="ignore"):
            pending[...] = obs
        self._finite[...] = np.isfinite(pending).all(axis=1)

    # Sampling

    def sample(self, count: int, generator: np.random.Generator, n_step: int = 1, gamma: float = 0.99) -> Transitions:
        """Sample n-step transitions uniformly with replacement.

        They have fewer steps where the episode ends, at the newest transition, and before a dropped one. The target
        bootstraps from the observation after the last step, unless that step terminated.

        Args:
            count: B.
            generator: Random generator.
            n_step: n.
            gamma: The discount γ.

        Raises:
            ValueError: The buffer is empty.
        """
        path, real = self._follow(self._sample_rows(count, generator), n_step)
        last = path[-1]
        # LaTeX: \left( \gamma^0, \gamma^1, \dots, \gamma^n \right)
        powers = (gamma ** np.arange(n_step + 1)).astype(np.float32)  # [n+1]
        # LaTeX: R = \sum_{i=0}^{k-1} \gamma^i r_{t+i}, \quad k \le n
        rewards = (powers[:n_step, None] * self.rewards.ravel().take(path) * real).sum(axis=0)
        terminated = (self.flags.ravel().take(last) & _TERMINATED) != 0
        # LaTeX: \gamma^k (1 - d)
        discounts = powers.take(real.sum(axis=0)) * ~terminated
        return Transitions(
            obs=self._flat(self.obs).take(path[0], axis=0),
            actions=self._flat(self.actions).take(path[0], axis=0),
            rewards=rewards,
            discounts=discounts,
            next_obs=self._flat(self.obs).take(self._successors(last), axis=0),
        )

    def sample_windows(self, count: int, length: int, generator: np.random.Generator) -> Windows:
        """Sample windows uniformly with replacement: a transition and those that follow it in its episode.

        Args:
            count: B.
            length: T. A window is shorter where the episode ends, at the newest transition, and before a dropped one.
            generator: Random generator.

        Raises:
            ValueError: The buffer is empty, or was built without log-probabilities.
        """
        if self.log_probs is None:
            raise ValueError("log_probs: windows need them, got none; build the replay buffer with log_probs=True.")
        path, real = self._follow(self._sample_rows(count, generator), length)
        path, real = path.T, real.T  # [B, T]
        flags = self.flags.ravel().take(path)
        ended = ((flags & _ENDED) != 0) | ~real
        ended[:, :-1] |= ~real[:, 1:]
        return Windows(
            obs=self._flat(self.obs).take(path, axis=0),
            actions=self._flat(self.actions).take(path, axis=0),
            log_probs=self.log_probs.ravel().take(path),
            rewards=self.rewards.ravel().take(path) * real,
            terminated=((flags & _TERMINATED) != 0).astype(np.float32),
            ended=ended.astype(np.float32),
            next_obs=self._flat(self.obs).take(self._successors(path), axis=0),
        )

    def _sample_rows(self, count: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """Sample rows, ``[B]``: environment n of slot t is row ``t * N + n``."""
        if self._usable == 0:
            raise ValueError(
                f"replay: must hold at least one transition to sample, got 0 "
                f"(and {self.dropped:,} that were not finite); add some first."
            )
        places = generator.integers(self._usable, size=count)
        return self._queue.take(places + self._queue_start, mode="wrap")

    def _follow(self, rows: NDArray[np.int64], steps: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return rows of successive transitions ``[steps, B]``, the last real one repeated, and which are real."""
        if steps < 1:
            raise ValueError(f"window: must be at least 1 step long, got {steps}.")
        path = np.empty((steps, len(rows)), np.int64)
        real = np.ones((steps, len(rows)), np.bool_)
        path[0] = rows
        flags = self.flags.ravel()
        here = flags.take(rows)
        for k in range(1, steps):
            rows = self._successors(rows)
            there = flags.take(rows)
            # The head is never usable, so no window crosses from the newest to the oldest slot.
            np.logical_and(real[k - 1], ((there & _USABLE) != 0) & ((here & _ENDED) == 0), out=real[k])
            path[k] = np.where(real[k], rows, path[k - 1])
            here = there
        return path, real

    def _successors(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        following = rows + self.num_envs
        following -= self.flags.size * (following >= self.flags.size)
        return following

    @staticmethod
    def _flat(array: NDArray[np.float32]) -> NDArray[np.float32]:
        return array.reshape(-1, array.shape[-1])

    # Saving

    def save(self, folder: Path) -> dict[str, Any]:
        """Save the buffer to a folder; write only what is new since the last save to that folder.

        The files of an earlier index stay until `clean` is called with a later index.

        Args:
            folder: A folder for this buffer only; created if it does not exist.

        Returns:
            An index of plain values for the checkpoint, which `load` needs.

        Raises:
            OSError: It could not be written; the previous save is unchanged.
        """
        folder = folder.resolve()
        begin = self._oldest()
        size = max(1, segments.SEGMENT_BYTES // self._layout(1).itemsize)
        entries = segments.save(folder, self._saved.get(folder, []), begin, self._steps, size, self._copy)
        self._saved[folder] = entries
        return {
            **self._shape(),
            "steps": self._steps,
            "begin": begin,
            "slots": self.length,
            "dropped": self.dropped,
            "pending": self.current_obs.tolist(),
            "segments": [dict(entry) for entry in entries],
        }

    def load(self, folder: Path, index: dict[str, Any]) -> None:
        """Load a saved buffer; the next save to its folder writes only what is new.

        Raises:
            DamagedReplayError: A file is missing or damaged; the buffer is unchanged.
            ValueError: The saved buffer has another shape.
        """
        self._check_shape(index)
        folder = folder.resolve()
        entries, end = index["segments"], index["steps"]
        begin, length = index["begin"], index["slots"]
        if not end - begin < length <= self._max_length:
            raise segments.DamagedReplayError(
                f"replay: the saved index is damaged (steps {begin} to {end} do not fit into {length} slots)."
            )
        for _ in segments.load(folder, entries, begin, end, self._layout):
            pass  # check all segments before the first is loaded
        self.clear()
        if length != self.length:
            self._allocate(length)
        for first, segment in segments.load(folder, entries, begin, end, self._layout):
            start, last = max(first, begin), first + len(segment["obs"])  # the oldest segment may be partly evicted
            for name, array in self._arrays().items():
                for slots, steps in self._slots(start, last):
                    array[slots] = segment[name][start - first :][steps]
        self._steps = end
        self._store_pending(index["pending"])
        self.dropped = index["dropped"]
        ring = np.arange(begin, end) % self.length  # oldest first
        ordered, envs = np.nonzero(self.flags[ring] & _USABLE)
        ordered, envs = ordered[-self.capacity :], envs[-self.capacity :]  # the oldest slot may be partly evicted
        self._queue_start, self._usable = 0, len(envs)
        self._queue[: self._usable] = ring[ordered] * self.num_envs + envs
        self._saved = {folder: [dict(entry) for entry in entries]}

    def check_index(self, index: Any, name: str) -> None:
        """Check that a loaded index has the form of one of this buffer; nothing is read or changed.

        Raises:
            StructureError: It has not.
            ValueError: The saved buffer has another shape.
        """
        pending = [[0.0] * self.obs.shape[-1]] * self.num_envs
        counts = dict.fromkeys(("steps", "begin", "slots", "dropped"), 0)
        form = {**self._shape(), **counts, "pending": pending, "segments": list_of(segments.FORM)}
        check(index, form, name)
        self._check_shape(index)

    def _check_shape(self, index: dict[str, Any]) -> None:
        for name, value in self._shape().items():
            if index[name] != value:
                raise ValueError(f"replay: must have the saved {name} = {index[name]}, got {value}; use the same.")

    def clean(self, folder: Path, index: dict[str, Any]) -> None:
        """Delete the files that this index does not name, once the checkpoint with the index is written."""
        segments.clean(folder, index["segments"])

    def _shape(self) -> dict[str, Any]:
        return {
            "capacity": self.capacity,
            "num_envs": self.num_envs,
            "obs_dim": self.obs.shape[-1],
            "action_dim": self.actions.shape[-1],
            "log_probs": self.log_probs is not None,
        }

    def _arrays(self) -> dict[str, NDArray[Any]]:
        arrays: dict[str, NDArray[Any]] = {
            "obs": self.obs, "actions": self.actions, "rewards": self.rewards, "flags": self.flags,
        }  # fmt: skip
        return arrays if self.log_probs is None else {**arrays, "log_probs": self.log_probs}

    def _layout(self, steps: int) -> np.dtype[Any]:
        """Return the dtype of a segment: its steps of each array, one array after the other."""
        arrays = self._arrays().items()
        return np.dtype([(name, array.dtype.newbyteorder("<"), (steps, *array.shape[1:])) for name, array in arrays])

    def _copy(self, first: int, last: int) -> NDArray[Any]:
        segment = np.empty((), self._layout(last - first))
        for name, array in self._arrays().items():
            for slots, steps in self._slots(first, last):
                segment[name][steps] = array[slots]
        return segment

    def _slots(self, first: int, last: int) -> Iterator[tuple[slice, slice]]:
        """Yield the slots of the steps ``[first, last)`` and their positions there; in two parts if they wrap."""
        done = 0
        while first + done < last:
            slot = (first + done + self._shift) % self.length
            count = min(last - first - done, self.length - slot)
            yield slice(slot, slot + count), slice(done, done + count)
            done += count
