from __future__ import annotations

import copy
import math
from typing import Any, Literal, NamedTuple

import pytest
import torch
from torch import Tensor

from minerva.acceleration import applied as applied_module
from minerva.acceleration.applied import (
    Acceleration,
    AppliedUpdate,
    check_compiler,
    choose_acceleration,
    is_finite,
    load_moments,
    moments,
)
from minerva.acceleration.learnable import Learnable, Optimizer, minimize
from minerva.acceleration.tree import leaves
from tests.acceleration.marks import needs_compiler, needs_gpu
from tests.acceleration.samples import Minibatch, Regression, State, begin, loss, minibatches

COMPILED = Acceleration(compiled=True)


def make(acceleration: Acceleration, kind: Literal["adam", "sgd"] = "adam", device: str = "cpu") -> tuple[Any, ...]:
    """A regression, its state and how it is updated; the rate is an input."""
    torch.manual_seed(0)
    flat, state = begin(Regression().to(device))
    optimizer = Optimizer(flat, 1.0, 0.5, kind, in_place=not any(acceleration))

    def update(state: State, minibatch: Minibatch, rate: Tensor) -> tuple[State, Tensor]:
        learned, error = minimize(loss, state.regression, optimizer.scaled(rate), minibatch)
        return State(learned), error

    return flat.module, state, AppliedUpdate(update, state, acceleration)


@needs_compiler
@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_compiled_and_plain_updates_are_the_same_algorithm(kind: Literal["adam", "sgd"]) -> None:
    plain_module, plain_state, plain = make(Acceleration(), kind)
    module, state, fast = make(COMPILED, kind)
    assert torch.equal(plain_module.layer.weight, module.layer.weight)
    for epoch in range(2):  # the second starts from moments that are there, with another learning rate
        rate = torch.tensor(0.01 / (1 + epoch))
        for minibatch in minibatches(9):
            (one, error), (other, other_error) = plain(minibatch, rate), fast(minibatch, rate)
            assert one and other
            torch.testing.assert_close(error, other_error, rtol=1e-4, atol=1e-5)
        for a, b in zip(plain_module.parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(plain_state, state, rtol=1e-4, atol=1e-6)
    assert state.regression.steps.item() == 18
    assert (plain_module.scale - 1).abs() > 0.01  # and it did go somewhere

    # a minibatch that is not a number changes nothing, on either path
    for step, part, now in ((plain, plain_module, plain_state), (fast, module, state)):
        before = copy.deepcopy((part.state_dict(), tuple(now.regression)))
        for bad in (torch.nan, torch.inf):
            x, y, w = next(minibatches(1))
            y = y.clone()
            y[2] = bad
            finite, _ = step(Minibatch(x, y, w), rate)
            assert not finite
            torch.testing.assert_close((part.state_dict(), tuple(now.regression)), before, rtol=0, atol=0)
        assert step(next(minibatches(1)), rate)[0]  # and the next one counts again
        assert now.regression.steps.item() == 19


@needs_compiler
def test_compiled_updates_are_the_same_twice() -> None:
    results = []
    for _ in range(2):
        module, _, step = make(COMPILED)
        for minibatch in minibatches(6):
            step(minibatch, torch.tensor(0.01))
        results.append(module.state_dict())
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


@needs_gpu
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=needs_compiler)])
def test_captured_and_plain_updates_are_the_same_algorithm(compiled: bool) -> None:
    plain_module, plain_state, plain = make(Acceleration(), device="cuda")
    module, state, fast = make(Acceleration(compiled, captured=True), device="cuda")
    for i, minibatch in enumerate(minibatches(9)):
        given = Minibatch(*(part.cuda() for part in minibatch))
        if i == 4:
            given.y[1] = math.nan
        finite, other = (step(given, torch.tensor(0.01, device="cuda"))[0] for step in (plain, fast))
        assert finite == other == (i != 4)
        torch.testing.assert_close(plain_state, state, rtol=1e-4, atol=1e-6)
    for a, b in zip(plain_module.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("in_place", [False, True])
def test_gradients_are_clipped(in_place: bool) -> None:
    torch.manual_seed(0)
    flat, state = begin(Regression())
    before = flat.vector.clone()
    optimizer = Optimizer(flat, 1.0, 0.5, "sgd", in_place=in_place)

    def update(state: State, minibatch: Minibatch) -> tuple[State, Tensor]:
        learned, error = minimize(loss, state.regression, optimizer, minibatch)
        return State(learned), error

    AppliedUpdate(update, state, Acceleration())(next(minibatches(1)))
    torch.testing.assert_close((flat.vector - before).norm(), torch.tensor(0.5), rtol=1e-4, atol=0)


class Two(NamedTuple):
    """Two learnables and a tensor beside them."""

    actor: Learnable
    critic: Learnable
    other: Tensor


def make_two() -> Two:
    return Two(Learnable.start(torch.ones(2)), Learnable.start(torch.ones(3)), torch.zeros(1))


def test_a_state_is_finite_where_all_its_steps_are() -> None:
    def learnable(steps: float) -> Learnable:
        vector = torch.zeros(2)
        return Learnable(vector, vector, vector, torch.tensor([steps], dtype=torch.float64))

    assert is_finite((learnable(1), learnable(2), torch.tensor(math.nan)))
    assert not is_finite((learnable(1), learnable(math.nan)))


@pytest.mark.parametrize("acceleration", [Acceleration(), pytest.param(COMPILED, marks=needs_compiler)])
def test_where_one_part_is_not_finite_no_part_changes(acceleration: Acceleration) -> None:
    state = make_two()

    def update(state: Two, bad: Tensor) -> tuple[Two, Tensor]:
        actor, critic, other = state
        steps = critic.steps + torch.where(bad > 0, torch.nan, 1.0)
        changed = actor._replace(parameters=actor.parameters + 1, steps=actor.steps + 1)
        return Two(changed, critic._replace(square=critic.square + 2, steps=steps), other + 5), other + 1

    step = AppliedUpdate(update, state, acceleration)
    kept = [leaf.clone() for leaf in leaves(state)]
    finite, metrics = step(torch.ones(1))
    assert not finite and metrics.item() == 1
    assert all(torch.equal(x, y) for x, y in zip(leaves(state), kept, strict=True))
    finite, _ = step(torch.zeros(1))
    actor, critic, other = state
    assert finite and actor.parameters.tolist() == [2.0, 2.0] and critic.square.tolist() == [2.0] * 3
    assert other.item() == 5 and actor.steps.item() == critic.steps.item() == 1  # in the same storage


def test_moments_are_saved_by_name_and_loaded_in_place() -> None:
    state = make_two()
    names = [f"{part}.{name}" for part in ("actor", "critic") for name in ("average", "square", "steps")]
    state.critic.average.add_(4)
    state.actor.steps.add_(7)
    saved = moments(state)
    assert list(saved) == names
    state.critic.average.zero_()
    state.actor.steps.zero_()
    state.actor.parameters.add_(1)
    assert saved["critic.average"].tolist() == [4.0] * 3  # a copy
    load_moments(state, saved)
    assert state.critic.average.tolist() == [4.0] * 3 and state.actor.steps.item() == 7
    assert state.actor.parameters.tolist() == [2.0, 2.0]  # which belong to the modules


# What is chosen


CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("wanted", "device", "steps", "static", "expected"),
    [
        ("auto", CPU, 99, True, (False, False)),
        ("auto", CPU, 100, True, (True, False)),
        ("auto", CPU, 1e9, False, (False, False)),
        ("auto", GPU, 99, True, (False, True)),
        ("auto", GPU, 1e9, True, (False, True)),  # nothing is said of when it is worth it there
        ("auto", GPU, 1e9, False, (False, False)),
        (True, CPU, 1, True, (True, False)),
        (True, GPU, 1, True, (True, True)),
        (False, CPU, 1e9, True, (False, False)),
        (False, GPU, 1e9, True, (False, False)),
    ],
)
def test_how_updates_run_follows_from_settings_and_length(
    wanted: Any, device: torch.device, steps: float, static: bool, expected: tuple[bool, bool]
) -> None:
    assert choose_acceleration(wanted, device, steps, {"cpu": 100}, static) == expected


@pytest.mark.parametrize(
    ("chosen", "installed", "compiled", "words"),
    [
        (False, True, False, None),
        (False, False, False, None),
        (True, True, True, "Updates are compiled"),
        (True, False, False, "No C++ compiler"),
    ],
)
def test_compiling_is_said_and_done_only_with_a_compiler(
    chosen: bool, installed: bool, compiled: bool, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(applied_module, "compiler_available", lambda: installed)
    for captured in (False, True):
        found, note = check_compiler(Acceleration(chosen, captured))
        assert found == (compiled, captured)
        assert (note is None) if words is None else (note is not None and words in note)


def test_an_acceleration_in_words() -> None:
    assert [str(Acceleration(*pair)) for pair in ((False, False), (True, False), (True, True))] == [
        "plain", "compiled", "compiled and captured",
    ]  # fmt: skip
