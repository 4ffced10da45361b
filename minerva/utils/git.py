"""The commit of a folder, without running what its repository is configured to run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path


def git_commit(folder: Path | None = None) -> str | None:
    """Return the commit of a folder's repository, with "-dirty" if tracked files were changed, or None.

    A repository can name programs that git runs: monitors of its files, filters of their content, hooks, other tools to
    compare with, ways to fetch. Whoever only stands in the folder has not agreed to any of them, so they are switched
    off. A file that a filter would change counts as changed once its time is.

    Args:
        folder: A folder in the repository; by default the current one.
    """
    where = ["-C", str(folder)] if folder is not None else []
    try:
        filters = _run([*where, "config", "--name-only", "-z", "--get-regexp", r"^filter\."], {}).stdout.split("\0")
        settings = {
            **dict.fromkeys((name for name in filters if not name.endswith(".required")), ""),
            **dict.fromkeys((name for name in filters if name.endswith(".required")), "false"),
            "core.fsmonitor": "false",
            "core.hooksPath": os.devnull,
        }
        settings.pop("", None)
        commit = _run([*where, "rev-parse", "--verify", "--quiet", "HEAD"], settings)
        if commit.returncode != 0:
            return None
        # Submodules have settings of their own, and are left out.
        compare = ["diff", "--quiet", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all", "HEAD", "--"]
        changed = _run([*where, *compare], settings).returncode != 0
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return commit.stdout.strip() + "-dirty" * changed


def _run(arguments: list[str], settings: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run git with settings that have precedence over those of files."""
    first = int(os.environ.get("GIT_CONFIG_COUNT") or 0)  # the user's own come before ours
    environment = {**os.environ, "GIT_CONFIG_COUNT": str(first + len(settings)), "GIT_ALLOW_PROTOCOL": "none"}
    for i, (name, value) in enumerate(settings.items(), first):
        environment |= {f"GIT_CONFIG_KEY_{i}": name, f"GIT_CONFIG_VALUE_{i}": value}
    return subprocess.run(
        ["git", "--no-pager", *arguments], capture_output=True, text=True, timeout=5, check=False, env=environment
    )
