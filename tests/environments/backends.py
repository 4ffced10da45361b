"""The backends that the conformance suite runs over: a new one is one more line here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from minerva.environments import BatchedEnvironment, EnvFactory, GymnasiumBatch

Backend = Callable[[Sequence[EnvFactory], int], BatchedEnvironment]
"""From one factory an environment, and the seed, to the batch of them."""

BACKENDS: dict[str, Backend] = {
    "gymnasium, sync": partial(GymnasiumBatch, vectorization="sync"),
    "gymnasium, 1 worker": partial(GymnasiumBatch, vectorization="subprocess", num_workers=1),
    "gymnasium, 2 workers": partial(GymnasiumBatch, vectorization="subprocess", num_workers=2),
}
