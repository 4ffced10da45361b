"""Messages of gym and their level."""

from __future__ import annotations

import sys

DEBUG, INFO, WARN, ERROR, DISABLED = 10, 20, 30, 40, 50

MIN_LEVEL = WARN


def set_level(level: int) -> None:
    """Set the lowest level of messages that are printed."""
    global MIN_LEVEL
    MIN_LEVEL = level


def _say(level: int, name: str, message: str, values: tuple[object, ...]) -> None:
    if level >= MIN_LEVEL:
        print(f"{name}: {message % values if values else message}", file=sys.stderr)


def debug(message: str, *values: object) -> None:
    """Print a message of level DEBUG."""
    _say(DEBUG, "DEBUG", message, values)


def info(message: str, *values: object) -> None:
    """Print a message of level INFO."""
    _say(INFO, "INFO", message, values)


def warn(message: str, *values: object) -> None:
    """Print a message of level WARN."""
    _say(WARN, "WARN", message, values)


def error(message: str, *values: object) -> None:
    """Print a message of level ERROR."""
    _say(ERROR, "ERROR", message, values)


setLevel = set_level  # noqa: N816 - gym's own second name
