"""Evaluation that does not affect training: its own environments and generators, frozen normalizers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from minerva.environments.base import Rows, check_finite, clip_to_box
from minerva.environments.groups import IDLE, STEP, Outcome
from minerva.environments.hangs import HangWatch
from minerva.environments.ids import EnvFactory
from minerva.environments.workers import LocalGroup
from minerva.utils.seeding import spawn_generators

Act = Callable[[Rows], NDArray[np.float32]]
"""A function from raw flat observations ``[E, O]`` (masks at the end, uint8 for images) to actions ``[E, A]``."""


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of the episodes of one evaluation."""

    returns: NDArray[np.float64]  # [E], raw rewards
    lengths: NDArray[np.int64]  # [E]

    def metrics(self) -> dict[str, float]:
        """Return the summary to log."""
        return {
            "eval/return_mean": float(self.returns.mean()),
            "eval/return_std": float(self.returns.std()),
            "eval/return_min": float(self.returns.min()),
            "eval/return_max": float(self.returns.max()),
            "eval/return_median": float(np.median(self.returns)),
            "eval/length_mean": float(self.lengths.mean()),
        }


class Evaluator:
    """Evaluate a policy on one episode in each of E environments, stepped together.

    Every evaluation starts from the same seeds. The first one builds the environments, the others reuse them.

    Args:
        factory: Builds one environment.
        episodes: E.
        seed: The episodes' seeds are spawned from it.
        max_steps: Length at which an episode that does not end is cut.
        allow_non_finite: Continue on values that are not finite instead of raising an error; the return of such an
            episode may not be finite.
        stream: Name of the stream of seeds: evaluations with other names, and training, run other episodes.
    """

    def __init__(
        self,
        factory: EnvFactory,
        episodes: int,
        seed: int,
        max_steps: int = 100_000,
        allow_non_finite: bool = False,
        stream: str = "evaluation",
    ) -> None:
        self._allow_non_finite = allow_non_finite
        self._factory = factory
        self._episodes = episodes
        self._seeds = [generator.integers(2**31) for generator in spawn_generators(seed, stream, episodes)]
        self._max_steps = max_steps
        self._group: LocalGroup | None = None
        self._watch: HangWatch | None = None

    @overload
    def run(self, act: Act) -> Evaluation: ...

    @overload
    def run(self, act: Act, should_stop: Callable[[], bool]) -> Evaluation | None: ...

    def run(self, act: Act, should_stop: Callable[[], bool] | None = None) -> Evaluation | None:
        """Evaluate a policy; return None if `should_stop`, called before every step, stopped it early."""
        if self._group is None:
            self._group = LocalGroup([self._factory] * self._episodes)
            self._watch = HangWatch(self._group.where)
        space = self._group.spaces[1]
        returns = np.zeros(self._episodes)
        lengths = np.zeros(self._episodes, dtype=np.int64)
        orders = np.array(self._seeds, dtype=np.int64)
        no_actions = np.zeros((self._episodes, int(np.prod(space.shape or ()))), dtype=np.float32)
        outcome = self._apply(no_actions, orders)
        orders[:] = STEP
        for _ in range(self._max_steps):
            if should_stop is not None and should_stop():
                return None
            actions = clip_to_box(act(outcome.observations.copy()), space)
            outcome = self._apply(actions, orders)
            running = orders == STEP
            returns[running] += outcome.scores[running]
            lengths += running
            orders[outcome.terminated | outcome.truncated] = IDLE
            if (orders == IDLE).all():
                break
        return Evaluation(returns, lengths)

    def _apply(self, actions: NDArray[np.float32], orders: NDArray[np.int64]) -> Outcome:
        assert self._group is not None and self._watch is not None
        self._watch.calls += 1
        try:
            outcome = self._group.apply(actions, orders)
        finally:
            self._watch.calls += 1
        if not self._allow_non_finite:
            check_finite(outcome.observations, outcome.rewards)
        return outcome

    def close(self) -> None:
        """Close the environments."""
        if self._group is not None and self._watch is not None:
            self._watch.close()
            self._group.close()
            self._group = None
