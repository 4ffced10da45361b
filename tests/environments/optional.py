"""Packages that a developer may do without, but not the machine that decides whether everything holds."""

from __future__ import annotations

import importlib.util
import os

import pytest


def needs(*packages: str) -> pytest.MarkDecorator:
    """Skip where a package is missing, with its name; where CI is set, run and fail."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return pytest.mark.skipif(
        bool(missing) and not os.environ.get("CI"), reason=f"not installed: {', '.join(missing) or 'nothing'}"
    )
