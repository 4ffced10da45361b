from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from benchmarks.lowest_versions import constraints, lowest_versions

ROOT = Path(__file__).parents[2]


def project(*dependencies: str, **extras: list[str]) -> dict[str, Any]:
    return {"name": "ours", "dependencies": list(dependencies), "optional-dependencies": extras}


def test_the_list_is_that_of_the_metadata() -> None:
    listed = (ROOT / "constraints-lowest.txt").read_text()
    assert listed == constraints(), "python benchmarks/lowest_versions.py > constraints-lowest.txt"


def test_each_package_of_the_metadata_is_listed() -> None:
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = metadata["optional-dependencies"]
    wanted = {
        *metadata["dependencies"],
        *(line for name in extras if name not in ("dev", "peers") for line in extras[name]),
    }
    names = {re.split(r"[\[<>=]", line)[0] for line in wanted} - {metadata["name"]}
    assert names == set(re.findall(r"^([\w-]+)==", constraints(), re.MULTILINE)) and len(names) > 15


def test_the_lowest_version_of_each_package() -> None:
    found = lowest_versions(
        project("torch>=2.11", mj=["mujoco>=3.5,<4", "gymnasium[mujoco]>=1.2"], more=["ours[mj]"], dev=["pytest>=8"])
    )
    assert found == {"torch": "2.11", "mujoco": "3.5", "gymnasium": "1.2"}


def test_a_package_with_two_lower_bounds() -> None:
    with pytest.raises(ValueError, match=r"mujoco has two lower bounds, 3\.2 and 3\.5"):
        lowest_versions(project("mujoco>=3.2", extra=["mujoco>=3.5,<4"]))


@pytest.mark.parametrize("requirement", ["mujoco", "mujoco<4", "mujoco==3.5", "mujoco>3"])
def test_a_package_without_a_lower_bound(requirement: str) -> None:
    with pytest.raises(ValueError, match=f"must read name>=version, got '{requirement}'"):
        lowest_versions(project(requirement))
