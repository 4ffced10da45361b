"""Rollout workers that sleep instead of stepping environments, and pass arrays of real size through Ray."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
import ray
from numpy.typing import NDArray

from benchmarks.cluster_model import BYTES_PER_FLOAT, Round, Task

# Numbers of the size that PPO has on HalfCheetah-v5 with (256, 256) and on Atari games with the CNN of DQN's paper.
CONTROL = Task("control", 512, 4, (17 + 6 + 6) * BYTES_PER_FLOAT, 150_000, 0.004, 2e-5)
IMAGES = Task("images", 64, 4, 84 * 84 * 4 + 6 * BYTES_PER_FLOAT, 1_690_000, 0.015, 1e-4)


@ray.remote(num_cpus=1, max_restarts=0)
class Worker:
    """Sleeps for the time of its steps and returns a segment."""

    def collect(self, weights: NDArray[np.float32], size: int, seconds: float) -> NDArray[np.uint8]:
        """Return a segment of so many bytes, collected with these weights."""
        segment = np.full(size, weights[-1], np.uint8)
        time.sleep(seconds)
        return segment

    def ready(self) -> str:
        """Return the id of the node."""
        return str(ray.get_runtime_context().get_node_id())


class Played(NamedTuple):
    """A round that was played."""

    seconds: float
    processor: float
    """Seconds of the processor in the learner's process."""


def play_rounds(workers: list[Any], one: Round, rounds: int) -> list[Played]:
    """Play rounds of synchronous training and return what each took; the first, which warms up, is left out."""
    size, parameters = int(one.segment_bytes), int(one.weights_bytes) // BYTES_PER_FLOAT
    batch = np.empty((len(workers), size), np.uint8)
    took = []
    for number in range(rounds + 1):
        begin, processor = time.perf_counter(), time.process_time()
        weights = ray.put(np.full(parameters, number % 251, np.float32))
        segments = [worker.collect.remote(weights, size, one.worker) for worker in workers]
        for k in range(len(workers)):
            batch[k] = ray.get(segments[k])
            segments[k] = None
        if not (batch[:, -1] == number % 251).all():
            raise RuntimeError("a segment was collected with other weights")
        time.sleep(one.learner * len(workers))
        took.append(Played(time.perf_counter() - begin, time.process_time() - processor))
    return took[1:]
