"""Optional packages: tests that need a missing one are skipped, but fail in CI."""

from __future__ import annotations

import importlib.util
import os

import pytest


def needs(*packages: str) -> pytest.MarkDecorator:
    """Skip a test if a package is missing and name the package; if CI is set, run and fail."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return pytest.mark.skipif(
        bool(missing) and not os.environ.get("CI"), reason=f"not installed: {', '.join(missing) or 'nothing'}"
    )
