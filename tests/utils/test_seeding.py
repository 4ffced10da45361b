from __future__ import annotations

import torch

from minerva.utils.seeding import initialization_seed, spawn_seed, torch_generator


def test_consumers_and_seeds_have_their_own_streams() -> None:
    names, seeds = ("action_noise", "minibatch_order", "initialization", "evaluation"), range(50)
    drawn = {spawn_seed(seed, name) for name in names for seed in seeds}
    assert len(drawn) == len(names) * len(seeds)
    assert all(0 <= seed < 2**63 for seed in drawn)


def test_a_seed_means_the_same_in_every_process_and_version() -> None:
    # Changing these numbers changes the result of every seed: runs would no longer be reproducible.
    assert spawn_seed(42, "action_noise") == 5747847315012107575
    assert spawn_seed(42, "minibatch_order") == 4267053231029665627


def test_torch_generators_repeat_and_do_not_change_the_global_one() -> None:
    before = torch.random.get_rng_state()
    first = torch.randn(5, generator=torch_generator(1, "a"))
    assert torch.equal(first, torch.randn(5, generator=torch_generator(1, "a")))
    assert not torch.equal(first, torch.randn(5, generator=torch_generator(1, "b")))
    assert not torch.equal(first, torch.randn(5, generator=torch_generator(2, "a")))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_initialization_is_seeded_and_the_global_generator_restored() -> None:
    before = torch.random.get_rng_state()
    with initialization_seed(3):
        first = torch.randn(4)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.randn(7)
    with initialization_seed(3):
        again = torch.randn(4)
    with initialization_seed(4):
        other = torch.randn(4)
    assert torch.equal(first, again) and not torch.equal(first, other)
