"""Scripts for stable-baselines, written in the manner of its documentation, and a runner for them."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from minerva.compat.aliases.renaming import renamed

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
SCRIPTS = sorted(FOLDER.glob("[0-9]*.py"))
LAUNCHER = ("-m", "minerva.compat.stable_baselines")
BOUND = "# bound to TensorFlow"
"""The line in a script that says that it needs TensorFlow itself."""
WAYS = {
    "unchanged": "python -m minerva.compat.stable_baselines script.py",
    "renamed": "stable_baselines and gym renamed in the imports",
    "prefix": "only stable_baselines renamed in the imports",
}


@dataclass(frozen=True)
class Result:
    """How a script ended.

    Args:
        script: Its name.
        way: A key of `WAYS`.
        passed: Whether it ran to its end.
        seconds: How long it took, with the start of Python.
        error: The last line of what it wrote to standard error, if it failed.
    """

    script: str
    way: str
    passed: bool
    seconds: float
    error: str


def is_bound(script: Path) -> bool:
    """Return whether a script says that it needs TensorFlow itself."""
    return BOUND in script.read_text().splitlines()


def uses_gym(script: Path) -> bool:
    """Return whether a script imports gym."""
    nodes = ast.walk(ast.parse(script.read_text()))
    names = [
        name
        for node in nodes
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    ]
    return any(name.partition(".")[0] == "gym" for name in names)


def with_prefix(source: str) -> str:
    """Return a script in which only the prefix ``stable_baselines`` of its imports is replaced."""
    return re.sub(r"(?m)^(from |import )stable_baselines\b", r"\1minerva.compat.stable_baselines", source)


def run(script: Path, way: str, timeout: float) -> Result:
    """Run a script in a new folder, in a process of its own."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "MPLBACKEND": "Agg",
        "SDL_VIDEODRIVER": "dummy",
    }
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / script.name
        if way == "unchanged":
            shutil.copy(script, path)
        elif way == "renamed":
            path.write_bytes(renamed(script.read_bytes()))
        else:
            path.write_text(with_prefix(script.read_text()))
        command = [sys.executable, *(LAUNCHER if way == "unchanged" else ()), path.name]
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout, errors="replace"
            )
            passed, said = done.returncode == 0, done.stderr
        except subprocess.TimeoutExpired:
            passed, said = False, f"took longer than {timeout:g} seconds"
    error = "" if passed else _last_line(said)
    return Result(script.stem, way, passed, round(time.perf_counter() - begin, 1), error)


def _last_line(said: str) -> str:
    """Return the last line of an error, with the line of the script that raised it."""
    lines = [line for line in said.splitlines() if line.strip()]
    places = re.findall(r'File "[^"]*?/?(\d\d_\w+\.py)", line (\d+)', said)
    where = f"line {places[-1][1]}: " if places else ""
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Exit|Interrupt|Warning)\b", line)]
    return where + (errors[-1] if errors else lines[-1] if lines else "no message")
