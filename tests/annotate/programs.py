"""What has to be installed on the machine."""

import os
import shutil

import pytest


def need(*commands: str) -> str:
    """Find a program; without it the test is skipped, or fails where everything is supposed to be installed."""
    for command in commands:
        if (path := shutil.which(command)) is not None:
            return path
    reason = f"needs {' or '.join(commands)}, which is not installed"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
