"""Schedules: values that change over time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

Function = Callable[[float], float]


class Schedule(ABC):
    """Base class of schedules: a value that depends on the step."""

    @abstractmethod
    def value(self, step: float) -> float:
        """Return the value at a step."""


class ConstantSchedule(Schedule):
    """A schedule with the same value at all steps.

    Args:
        value: The value.
    """

    def __init__(self, value: float) -> None:
        self._value = value

    def value(self, step: float) -> float:
        """Return the value at a step."""
        return self._value


def linear_interpolation(left: float, right: float, alpha: float) -> float:
    """Return the number that is the fraction `alpha` of the way from `left` to `right`."""
    return left + alpha * (right - left)


class PiecewiseSchedule(Schedule):
    """A schedule that interpolates between given values.

    Args:
        endpoints: Pairs (step, value), in the order of steps.
        interpolation: Returns a value from two neighbors and the fraction of the way between them.
        outside_value: The value before the first step and from the last step on; None for an error there.
    """

    def __init__(
        self,
        endpoints: Sequence[tuple[float, float]],
        interpolation: Callable[[float, float, float], float] = linear_interpolation,
        outside_value: float | None = None,
    ) -> None:
        steps = [step for step, _ in endpoints]
        if steps != sorted(steps):
            raise ValueError(f"endpoints: must be in the order of their steps, got the steps {steps}.")
        self._endpoints = list(endpoints)
        self._interpolation = interpolation
        self._outside_value = outside_value

    def value(self, step: float) -> float:
        """Return the value at a step."""
        for (left, low), (right, high) in zip(self._endpoints[:-1], self._endpoints[1:], strict=True):
            if left <= step < right:
                return self._interpolation(low, high, float(step - left) / (right - left))
        if self._outside_value is None:
            raise ValueError(f"step: must lie between the endpoints if there is no outside_value, got {step}.")
        return self._outside_value


class LinearSchedule(Schedule):
    """A schedule that goes in a straight line from one value to another, and stays there.

    Args:
        schedule_timesteps: The step at which the last value is reached.
        final_p: The last value.
        initial_p: The first value.
    """

    def __init__(self, schedule_timesteps: float, final_p: float, initial_p: float = 1.0) -> None:
        self.schedule_timesteps = schedule_timesteps
        self.final_p = final_p
        self.initial_p = initial_p

    def value(self, step: float) -> float:
        """Return the value at a step."""
        fraction = min(float(step) / self.schedule_timesteps, 1.0)
        return self.initial_p + fraction * (self.final_p - self.initial_p)


def constant(progress: float) -> float:
    """Return 1, the schedule that stays constant."""
    return 1.0


def linear_schedule(progress: float) -> float:
    """Return what remains of 1 at a share of progress, the schedule that decreases linearly to 0."""
    return 1 - progress


def middle_drop(progress: float) -> float:
    """Return what remains of 1 at a share of progress, and 0.075 once that is less than 0.75."""
    remaining = 1 - progress
    return 0.075 if remaining < 0.75 else remaining


def double_linear_con(progress: float) -> float:
    """Return what remains of 1 if progress is twice as fast, at least 0.125."""
    return max(1 - 2 * progress, 0.125)


def double_middle_drop(progress: float) -> float:
    """Return what remains of 1, 0.075 once that is less than 0.75, and 0.125 once it is less than 0.25."""
    remaining = 1 - progress
    return remaining if remaining >= 0.75 else 0.075 if remaining >= 0.25 else 0.125


SCHEDULES: dict[str, Function] = {
    "linear": linear_schedule,
    "constant": constant,
    "double_linear_con": double_linear_con,
    "middle_drop": middle_drop,
    "double_middle_drop": double_middle_drop,
}


class Scheduler:
    """A schedule whose value decreases with the number of calls.

    Args:
        initial_value: The value at the start.
        n_values: Number of calls after which progress is 1.
        schedule: One of `SCHEDULES`, by name.
    """

    def __init__(self, initial_value: float, n_values: int, schedule: str) -> None:
        self.step = 0.0
        self.initial_value = initial_value
        self.nvalues = n_values
        self.schedule = SCHEDULES[schedule]

    def value(self) -> float:
        """Return the current value, and count the call."""
        current = self.value_steps(self.step)
        self.step += 1.0
        return current

    def value_steps(self, steps: float) -> float:
        """Return the value after a number of calls."""
        return self.initial_value * self.schedule(steps / self.nvalues)


def constfn(val: float) -> Function:
    """Return a function that always returns `val`."""
    return ConstantSchedule(val).value


def get_schedule_fn(value_schedule: Any) -> Function:
    """Return a function for a number; return a function as it is.

    Raises:
        ValueError: It is neither.
    """
    if isinstance(value_schedule, Real):
        return constfn(float(value_schedule))
    if not callable(value_schedule):
        raise ValueError(f"value_schedule: must be a number or a function, got {value_schedule!r}.")
    function: Function = value_schedule
    return function


# In files


def plain_function(function: Any) -> dict[str, Any] | None:
    """Describe a function of this module by its name and numbers; return None for another one."""
    for name, known in SCHEDULES.items():
        if function is known:
            return {"schedule": name}
    owner = getattr(function, "__self__", None)
    if getattr(function, "__name__", None) != "value":
        return None
    if type(owner) is ConstantSchedule:
        return {"schedule": "ConstantSchedule", "arguments": [float(owner._value)]}
    if type(owner) is LinearSchedule:
        numbers = (owner.schedule_timesteps, owner.final_p, owner.initial_p)
        return {"schedule": "LinearSchedule", "arguments": [float(number) for number in numbers]}
    if type(owner) is PiecewiseSchedule and owner._interpolation is linear_interpolation:
        outside = None if owner._outside_value is None else float(owner._outside_value)
        endpoints = [[float(step), float(value)] for step, value in owner._endpoints]
        return {"schedule": "PiecewiseSchedule", "arguments": [endpoints, outside]}
    return None


def function_from_plain(plain: dict[str, Any]) -> Function:
    """Build the function that `plain_function` described.

    Raises:
        ValueError: It is not such a description.
    """
    name, arguments = plain.get("schedule"), plain.get("arguments")
    try:
        if name in SCHEDULES:
            return SCHEDULES[name]
        if name == "ConstantSchedule":
            return ConstantSchedule(*map(float, arguments or ())).value
        if name == "LinearSchedule":
            return LinearSchedule(*map(float, arguments or ())).value
        if name == "PiecewiseSchedule" and arguments is not None:
            endpoints, outside = arguments
            return PiecewiseSchedule([(float(a), float(b)) for a, b in endpoints], outside_value=outside).value
    except (TypeError, ValueError) as error:
        raise ValueError(f"schedule: must describe a known schedule, got {plain!r}.") from error
    raise ValueError(f"schedule: must describe a known schedule, got {plain!r}.")
