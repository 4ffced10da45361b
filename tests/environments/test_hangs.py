from __future__ import annotations

import gc
import re
import sys
import threading
import time
from functools import partial
from typing import Any

import cloudpickle
import numpy as np
import pytest

from minerva.environments import GymnasiumBatch, hangs
from minerva.evaluation import Evaluator
from tests.environments.tiny_envs import Noisy

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Slow(Noisy):
    """Sleep in the third step."""

    def __init__(self, seconds: float) -> None:
        super().__init__(length=5)
        self.seconds = seconds

    def step(self, action: Any) -> Any:
        if self.steps == 2:
            time.sleep(self.seconds)
        return super().step(action)


def watchers() -> int:
    return sum(thread.name == "minerva-hang-watch" for thread in threading.enumerate())


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hangs, "HANG_SECONDS", 0.2)


@pytest.mark.parametrize(
    ("vectorization", "who"),
    [("sync", "environment 1"), ("subprocess", r"the worker process of environments 1 to 1 \(process \d+\)")],
)
def test_a_step_that_hangs_is_reported_once(vectorization: Any, who: str) -> None:
    batch = GymnasiumBatch([Noisy, partial(Slow, 0.9)], 1, vectorization, 2)
    batch.reset()
    with pytest.warns(RuntimeWarning) as said:
        for _ in range(4):
            batch.step(np.zeros((2, 1), np.float32))
    batch.close()
    assert len(said) == 1
    sentence = f"{who} has taken more than 0.2 seconds for one step or reset; still waiting for it"
    assert re.fullmatch(sentence, str(said[0].message))


def test_a_step_that_hangs_in_evaluation_is_reported() -> None:
    evaluator = Evaluator(partial(Slow, 0.5), 1, 1)
    with pytest.warns(RuntimeWarning, match="environment 0 has taken more than 0.2 seconds"):
        evaluator.run(lambda obs: np.zeros((1, 1), np.float32))
    evaluator.close()


def test_many_quick_steps_and_idle_time_are_no_hang() -> None:
    batch = GymnasiumBatch([partial(Slow, 0.0)], 1)
    batch.reset()
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        batch.step(np.zeros((1, 1), np.float32))
    time.sleep(0.4)  # as in an update
    batch.close()  # a warning would be an error


def test_the_thread_ends_with_the_batch() -> None:
    gc.collect()
    time.sleep(0.1)
    before = watchers()
    batch, dropped = GymnasiumBatch([Noisy], 1), GymnasiumBatch([Noisy], 1)
    assert watchers() == before + 2
    batch.close()
    del dropped
    gc.collect()
    limit = time.monotonic() + 5
    while watchers() > before and time.monotonic() < limit:
        time.sleep(0.02)
    assert watchers() == before
