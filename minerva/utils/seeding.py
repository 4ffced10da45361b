"""Random generators, one per consumer, all derived from the run's seed."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def spawn_seed(seed: int, consumer: str) -> int:
    """Derive the seed of one consumer of randomness from the run's seed.

    The name is part of the entropy, so adding a consumer does not change the streams of the others.

    Args:
        seed: The run's seed.
        consumer: A name such as ``"action_noise"``.

    Returns:
        A 63-bit seed.
    """
    sequence = np.random.SeedSequence([seed, zlib.crc32(consumer.encode())])
    return int(sequence.generate_state(1, np.uint64)[0] >> 1)


def spawn_generators(seed: int, consumer: str, count: int) -> list[np.random.Generator]:
    """Spawn generators from the run's seed, such that no two runs, consumers or places in the list share a stream."""
    sequence = np.random.SeedSequence([seed, zlib.crc32(consumer.encode())])
    return [np.random.default_rng(child) for child in sequence.spawn(count)]


def torch_generator(seed: int, consumer: str, device: torch.device | str = "cpu") -> torch.Generator:
    """Build the torch generator of one consumer."""
    return torch.Generator(device=device).manual_seed(spawn_seed(seed, consumer))


@contextmanager
def initialization_seed(seed: int) -> Iterator[None]:
    """Seed torch's global generator, which initializes networks, within this context and restore it afterwards."""
    with torch.random.fork_rng(devices=[]):
        # Only the CPU's generator: networks are built there, and `torch.manual_seed` would also reseed every GPU.
        torch.default_generator.manual_seed(spawn_seed(seed, "initialisation"))  # a key of the seed: never respell it
        yield


@contextmanager
def as_global_generator(generator: torch.Generator) -> Iterator[None]:
    """Let torch's global generator of a device continue another one's stream within this context.

    Layers such as Dropout draw from the global generator and from no other.
    """
    device = generator.device
    default = torch.default_generator if device.type == "cpu" else torch.cuda.default_generators[device.index or 0]
    before = default.get_state()
    default.set_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(default.get_state())
        default.set_state(before)
