"""Check what an environment returns, so that a mistake ends a run with one sentence and never with wrong numbers."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np


class WrongValueError(ValueError):
    """An environment returned what its spaces or Gymnasium's interface do not allow; the message says what."""


PLAIN_NUMBERS = frozenset({float, int, np.float64, np.float32, np.int64, np.int32})
"""Types of a reward that need no further look."""


def one_number(value: Any) -> float:
    """Check a reward of any numeric type, also one in an array without axes, and return it as a float.

    Raises:
        WrongValueError: It is not one real number.
    """
    if isinstance(value, (Real, np.bool_)):
        return float(value)
    number = _scalar(value)
    if number is None or number.dtype.kind not in "biuf":
        raise WrongValueError(f"the reward must be one real number, got {described(value)}")
    return float(number)


def one_flag(value: Any, name: str) -> bool:
    """Check `terminated` or `truncated` (a bool, 0 or 1, or an array without axes) and return it as a bool.

    Raises:
        WrongValueError: It is none of these.
    """
    if isinstance(value, (bool, np.bool_)) or (isinstance(value, Integral) and value in (0, 1)):
        return bool(value)
    flag = _scalar(value)
    if flag is None or flag.dtype.kind not in "biu" or flag not in (0, 1):
        raise WrongValueError(f"{name} must be True or False, got {described(value)}")
    return bool(flag)


def check_step(result: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Check what an environment's `step` returned, and return it with plain types.

    Raises:
        WrongValueError: It is not five values.
    """
    if not isinstance(result, (tuple, list)) or len(result) != 5:
        raise WrongValueError(
            f"step must return (observation, reward, terminated, truncated, info), got {described(result)}"
        )
    observation, reward, terminated, truncated, info = result
    return observation, reward, terminated, truncated, info


def check_reset(result: Any) -> tuple[Any, Any]:
    """Check what an environment's `reset` returned, and return it.

    Raises:
        WrongValueError: It is not an observation and a dict.
    """
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise WrongValueError(f"reset must return (observation, info), got {described(result)}")
    check_info(result[1])
    return result[0], result[1]


def check_info(info: Any) -> None:
    """Check that the info that an environment returned is a dict.

    Raises:
        WrongValueError: It is not.
    """
    if not isinstance(info, Mapping):
        raise WrongValueError(f"info must be a dict, got {described(info)}")


def described(value: Any) -> str:
    """Describe a value that an environment returned in a few words, for an error message."""
    if isinstance(value, np.ndarray):
        values = f" ({value.tolist()!r})" if value.size <= 4 else ""
        return f"an array of shape {value.shape} and type {value.dtype}{values}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)} value{'s' * (len(value) != 1)}"
    if isinstance(value, Mapping):
        return f"a dict with {sorted(map(str, value))}"
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, np.generic)):
        text = repr(value)
        return text if len(text) <= 40 else f"{text[:40]}… ({type(value).__name__})"
    return f"a {type(value).__name__}"


def error_text(error: BaseException) -> str:
    """Return an exception's message, also where asking for it raises another one."""
    try:
        return str(error)
    except Exception:
        return "its message cannot be shown"


def _scalar(value: Any) -> np.ndarray[Any, Any] | None:
    try:
        array = np.asarray(value)
    except Exception:  # nested lists of different lengths, a tensor that needs a gradient
        return None
    return array if array.shape == () else None
