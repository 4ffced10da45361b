"""Programs that tests need."""

import os
import shutil

import pytest


def need(*commands: str) -> str:
    """Return the path of a program; without it the test is skipped, or fails on CI."""
    for command in commands:
        if (path := shutil.which(command)) is not None:
            return path
    reason = f"needs {' or '.join(commands)}, which is not installed"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
