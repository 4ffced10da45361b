"""The commit is read without running what a repository is configured to run."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from minerva.utils.git import git_commit

Git = Callable[..., str]


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Git:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    folder = tmp_path / "repository"
    folder.mkdir()

    def run(*words: str) -> str:
        names = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", *names, *words], cwd=folder, check=True, capture_output=True, text=True
        ).stdout.strip()

    run("init", "-q")
    (folder / "file.txt").write_text("one\n")
    run("add", "file.txt")
    run("commit", "-q", "-m", "first")
    return run


def test_the_commit_and_whether_files_were_changed(git: Git, tmp_path: Path) -> None:
    folder, head = tmp_path / "repository", git("rev-parse", "HEAD")
    assert git_commit(folder) == head
    (folder / "new.txt").write_text("not tracked")
    os.utime(folder / "file.txt", (1, 1))  # touched, but the same
    assert git_commit(folder) == head
    (folder / "file.txt").write_text("two\n")
    assert git_commit(folder) == f"{head}-dirty"
    git("add", "file.txt")
    assert git_commit(folder) == f"{head}-dirty"
    assert git_commit(tmp_path) is None


def test_no_program_of_the_repository_runs(git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, trace = tmp_path / "repository", tmp_path / "trace"
    spy = tmp_path / "spy"
    spy.write_text(f'#!/bin/sh\necho "$0 $@" >> {trace}\ncat\n')
    spy.chmod(0o755)
    (folder / ".git" / "info" / "attributes").write_text("* filter=spy diff=spy\n")
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("post-index-change", "pre-commit"):
        (hooks / name).write_bytes(spy.read_bytes())
        (hooks / name).chmod(0o755)
    for name, value in (
        ("core.fsmonitor", str(spy)), ("core.hooksPath", str(hooks)), ("filter.spy.clean", str(spy)),
        ("filter.spy.process", str(spy)), ("filter.spy.required", "true"), ("diff.spy.textconv", str(spy)),
        ("diff.spy.command", str(spy)), ("diff.external", str(spy)), ("core.pager", str(spy)),
    ):  # fmt: skip
        git("config", name, value)
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", str(spy))
    head = (folder / ".git" / "refs" / "heads").rglob("*")
    commit = next(path for path in head if path.is_file()).read_text().strip()
    (folder / "file.txt").write_text("one\n")  # the same, at another time: git has to look into it
    os.utime(folder / "file.txt", (time.time() + 9, time.time() + 9))
    assert git_commit(folder) == commit
    (folder / "file.txt").write_text("two\n")
    assert git_commit(folder) == f"{commit}-dirty"
    assert not trace.exists(), trace.read_text()
    # The repository would run them for a git that was asked plainly.
    subprocess.run(["git", "describe", "--always", "--dirty"], cwd=folder, capture_output=True, timeout=20, check=False)
    assert trace.exists()
