"""Random generators, one per consumer, all derived from the run's seed."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minerva.utils.structure import Check, StructureError, check, describe, expect


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


def check_numpy_generator_state(plain: Any, name: str) -> None:
    """Check that loaded values are the state of a NumPy (PCG64) generator.

    Raises:
        StructureError: They are not.
    """
    words = {"state": 2**128 - 1, "inc": 2**128 - 1}  # the largest ones
    check(plain, {"bit_generator": "", "state": words, "has_uint32": 1, "uinteger": 2**32 - 1}, name)
    scratch = np.random.default_rng(0)
    try:
        scratch.bit_generator.state = plain
    except (ValueError, TypeError, OverflowError) as error:
        raise StructureError(f"{name}: must be the state of a PCG64 generator, got one that it rejects") from error


def torch_generator_state(generator: torch.Generator, same_device: bool = True) -> Check:
    """Return a check that a loaded value is a state of a torch generator; of any kind, if that of another device."""

    def check_state(state: Any, name: str) -> None:
        if not same_device:
            expect(isinstance(state, Tensor) and state.dtype == torch.uint8, name, "must be a tensor of bytes", state)
            return
        check(state, generator.get_state(), name)
        try:
            torch.Generator(generator.device).set_state(state)
        except (RuntimeError, TypeError) as error:
            raise StructureError(
                f"{name}: must be the state of a generator, got {describe(state)} that it rejects"
            ) from error

    return check_state
