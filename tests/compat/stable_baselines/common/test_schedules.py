from __future__ import annotations

from typing import Any

import pytest

from minerva.compat.stable_baselines.common.schedules import (
    SCHEDULES,
    ConstantSchedule,
    LinearSchedule,
    PiecewiseSchedule,
    Scheduler,
    constfn,
    function_from_plain,
    get_schedule_fn,
    plain_function,
)


def test_schedules_of_steps() -> None:
    pieces = PiecewiseSchedule([(-5, 100), (5, 200), (10, 50), (200, -50)], outside_value=500)
    assert [pieces.value(t) for t in (-10, -5, 0, 5, 9, 200)] == [500, 100, 150, 200, 80, 500]
    line = LinearSchedule(100, final_p=0.5)
    assert [line.value(t) for t in (0, 50, 100, 1000)] == [1, 0.75, 0.5, 0.5]
    assert ConstantSchedule(3).value(7) == 3
    with pytest.raises(ValueError, match="step: must lie between the endpoints"):
        PiecewiseSchedule([(0, 1), (1, 2)]).value(1)
    with pytest.raises(ValueError, match="in the order of their steps"):
        PiecewiseSchedule([(1, 1), (0, 2)])


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("linear", [1, 0.8, 0.5, 0.1]),
        ("constant", [1, 1, 1, 1]),
        ("double_linear_con", [1, 0.6, 0.125, 0.125]),
        ("middle_drop", [1, 0.8, 0.075, 0.075]),
        ("double_middle_drop", [1, 0.8, 0.075, 0.125]),
    ],
)
def test_functions_of_progress(name: str, wanted: list[float]) -> None:
    assert [SCHEDULES[name](progress) for progress in (0, 0.2, 0.5, 0.9)] == pytest.approx(wanted)
    assert Scheduler(2.0, 10, name).value_steps(5) == pytest.approx(2 * wanted[2])


def test_a_scheduler_counts_its_calls() -> None:
    scheduler = Scheduler(1.0, 4, "linear")
    assert [scheduler.value() for _ in range(3)] == [1, 0.75, 0.5]


def test_numbers_and_functions() -> None:
    def double(share: float) -> float:
        return 2 * share

    function = get_schedule_fn(double)
    assert (get_schedule_fn(3)(0.1), get_schedule_fn(0.5)(1), function(0.25), constfn(2)(9)) == (3, 0.5, 0.5, 2)
    with pytest.raises(ValueError, match="value_schedule: must be a number or a function, got 'fast'"):
        get_schedule_fn("fast")


def test_other_functions_are_not_described() -> None:
    class Own(LinearSchedule):
        pass

    own = PiecewiseSchedule([(0, 1), (1, 2)], interpolation=lambda low, high, alpha: low)
    functions: list[Any] = [lambda share: share, Own(1, 2).value, own.value, [].append]
    for function in functions:
        assert plain_function(function) is None


@pytest.mark.parametrize(
    "plain",
    [{}, {"schedule": "exec"}, {"schedule": "LinearSchedule", "arguments": ["x"]},
     {"schedule": "ConstantSchedule", "arguments": [1, 2]}, {"schedule": "PiecewiseSchedule", "arguments": [3]}],
)  # fmt: skip
def test_wrong_descriptions_are_refused(plain: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="schedule: must describe a known schedule"):
        function_from_plain(plain)
