"""Describe the hardware and the code of a measurement."""

from __future__ import annotations

import os
from pathlib import Path

from minerva.utils.git import git_commit
from minerva.utils.hardware import gpu, hardware

__all__ = ["commit_of", "gpu", "hardware", "import_from"]


def import_from(tree: Path) -> dict[str, str]:
    """Return environment variables under which Python imports `minerva` from a checkout.

    Start the process in that folder too: `python -m` looks there first.
    """
    return {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}


def commit_of(tree: Path) -> str:
    """Return the commit of a checkout, with "-dirty" where files were changed."""
    commit, _, dirty = (git_commit(tree) or "unknown").partition("-")
    return commit[:7] + f"-{dirty}" * bool(dirty)
