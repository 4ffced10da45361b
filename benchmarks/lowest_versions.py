"""List the lowest versions that `pyproject.toml` allows, as constraints for pip; `make test-lowest` tests with them.

    python benchmarks/lowest_versions.py > constraints-lowest.txt

The extras `dev` and `peers` are left out: their packages are what Minerva is tested with and compared with. PyTorch
stays at the version of `constraints.txt`: another one is a download of gigabytes, because PyPI's builds are for GPUs.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LEFT_OUT = ("dev", "peers")
PINNED = "torch"
HEADER = """\
# The lowest versions that pyproject.toml allows, which `make test-lowest` tests with.
# Made by: python benchmarks/lowest_versions.py > constraints-lowest.txt
"""
# matplotlib 3.9 uses names that newer versions of pyparsing deprecate.
COMPANIONS = "pyparsing<3.3\n"
REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(\[[\w,-]+\])?>=(?P<lowest>[\w.]+)(,<[\w.]+)?")


def lowest_versions(project: dict[str, Any]) -> dict[str, str]:
    """Return the lowest version of each package that a project's metadata names.

    Args:
        project: The table `project` of `pyproject.toml`.

    Raises:
        ValueError: A requirement has no lower bound, or two of the same package have different ones.
    """
    lowest: dict[str, str] = {}
    for requirement in _requirements(project):
        match = REQUIREMENT.fullmatch(requirement)
        if match is None:
            raise ValueError(f"pyproject.toml: a requirement must read name>=version, got {requirement!r}.")
        name, version = match["name"], match["lowest"]
        if lowest.setdefault(name, version) != version:
            raise ValueError(
                f"pyproject.toml: {name} has two lower bounds, {lowest[name]} and {version}; give it the higher one."
            )
    return lowest


def _requirements(project: dict[str, Any]) -> Iterator[str]:
    yield from project["dependencies"]
    for extra, requirements in project["optional-dependencies"].items():
        if extra not in LEFT_OUT:
            yield from (each for each in requirements if not each.startswith(f"{project['name']}["))


def constraints(root: Path = ROOT) -> str:
    """Return the text of `constraints-lowest.txt`."""
    lowest = lowest_versions(tomllib.loads((root / "pyproject.toml").read_text())["project"])
    pin = re.search(rf"^{PINNED}==(.+)$", (root / "constraints.txt").read_text(), re.MULTILINE)
    assert pin is not None
    lowest[PINNED] = pin[1]
    return HEADER + "".join(f"{name}=={version}\n" for name, version in lowest.items()) + COMPANIONS


if __name__ == "__main__":
    print(constraints(), end="")
