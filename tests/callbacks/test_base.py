from __future__ import annotations

from typing import Any

import pytest

from minerva.callbacks import Callback, CallbackList

POINTS = ("on_training_start", "on_rollout_start", "on_step", "on_rollout_end", "on_training_end")


class Noting(Callback):
    """Records its calls."""

    def __init__(self, name: str, notes: list[tuple[str, str, Any]], answer: bool | None = None) -> None:
        self.name, self.notes, self.answer = name, notes, answer

    def on_training_start(self, trainer: Any) -> None:
        self.notes.append((self.name, "on_training_start", trainer))

    def on_rollout_start(self, trainer: Any) -> None:
        self.notes.append((self.name, "on_rollout_start", trainer))

    def on_step(self, trainer: Any) -> bool | None:
        self.notes.append((self.name, "on_step", trainer))
        return self.answer

    def on_rollout_end(self, trainer: Any) -> None:
        self.notes.append((self.name, "on_rollout_end", trainer))

    def on_training_end(self, trainer: Any) -> None:
        self.notes.append((self.name, "on_training_end", trainer))


@pytest.mark.parametrize("point", POINTS)
def test_every_event_reaches_nested_callbacks_in_order(point: str) -> None:
    notes: list[tuple[str, str, Any]] = []
    one, two, three = (Noting(name, notes) for name in ("one", "two", "three"))
    callbacks = CallbackList([one, None, [CallbackList([two]), (three,)], []])
    getattr(callbacks, point)("the trainer")
    assert notes == [(name, point, "the trainer") for name in ("one", "two", "three")]


@pytest.mark.parametrize("point", POINTS)
def test_a_callback_does_nothing_by_itself(point: str) -> None:
    assert getattr(Callback(), point)("the trainer") is None


def test_one_false_stops_training_and_all_are_called() -> None:
    notes: list[tuple[str, str, Any]] = []
    for answers, goes_on in (
        ((None, None), True),
        ((True, None), True),
        ((False, None), False),
        ((None, False), False),
        ((), True),
    ):
        notes.clear()
        callbacks = CallbackList([Noting("x", notes, answer) for answer in answers])
        assert callbacks.on_step(None) is goes_on
        assert len(notes) == len(answers)


def test_what_counts_as_false_is_false_itself() -> None:
    # A function that returns a number or None does not stop a run by accident.
    assert CallbackList(lambda trainer: 0).on_step(None) is True  # type: ignore[arg-type,return-value]


def test_a_function_is_called_at_every_step_and_nowhere_else() -> None:
    calls: list[Any] = []

    def stop_at_three(trainer: int) -> bool:
        calls.append(trainer)
        return trainer < 3

    for given in (stop_at_three, [stop_at_three], [[stop_at_three]]):
        calls.clear()
        callbacks = CallbackList(given)
        for point in POINTS:
            if point != "on_step":
                getattr(callbacks, point)(0)
        assert calls == []
        assert [callbacks.on_step(t) for t in (1, 2, 3)] == [True, True, False]
        assert calls == [1, 2, 3]


def test_none_and_empty_lists_are_accepted() -> None:
    assert CallbackList().callbacks == []
    assert CallbackList(None).on_step(None) is True


@pytest.mark.parametrize("wrong", [3, "on_step", {"a": 1}, [3], [lambda trainer: None, "x"]])
def test_other_types_are_rejected(wrong: Any) -> None:
    with pytest.raises(
        ValueError, match="callbacks: must be a Callback, a function of the trainer, or a list of these"
    ):
        CallbackList(wrong)
