from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = set(PYPROJECT["project"]["optional-dependencies"])
NAMED = re.compile(r"(?:minerva-rl|-e [\"']?\.)\[([^\]\n]+)\]")


def named_extras() -> Iterator[tuple[str, str]]:
    """Find where README, the site, messages, the Makefile and the metadata ask pip for extras."""
    files = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "pyproject.toml")]
    for folder, kind in (("docs", "*.md"), ("minerva", "*.py"), ("examples", "*.py"), ("benchmarks", "*.py")):
        files += sorted((ROOT / folder).rglob(kind))
    for file in files:
        for extras in NAMED.findall(file.read_text(encoding="utf-8")):
            yield from ((str(file.relative_to(ROOT)), extra) for extra in extras.split(",") if "{" not in extra)


def test_every_extra_is_asked_for_by_the_name_in_the_metadata() -> None:
    # pip 23.2.1 looks for the very name: it warns about another spelling, installs nothing for it, and succeeds.
    found = set(named_extras())
    assert [(place, extra) for place, extra in found if extra not in EXTRAS] == []
    users = {extra for place, extra in found if place != "pyproject.toml"}
    assert {"mujoco", "dm-control", "box2d", "atari", "envpool", "tracking", "report", "docs", "dev"} <= users


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_the_metadata_of_a_wheel_has_the_same_names(extra: str) -> None:
    assert extra == re.sub(r"[-_.]+", "-", extra).lower()  # how names are written there


def test_mujoco_is_limited_for_dm_control_alone() -> None:
    limited = {
        extra
        for extra, requirements in PYPROJECT["project"]["optional-dependencies"].items()
        if any(re.match(r"mujoco.*<", requirement) for requirement in requirements)
    }
    assert limited == {"dm-control"}


def test_the_description_for_a_package_index_has_no_link_into_the_repository() -> None:
    text = (ROOT / "README.md").read_text()
    hook = PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    assert hook["fragments"] == [{"path": "README.md"}]
    for each in hook["substitutions"]:
        text = re.sub(each["pattern"], each["replacement"], text)
    targets = re.findall(r"\]\(([^)]*)\)", text) + re.findall(r"(?:src|href)=\"([^\"]*)\"", text)
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    assert "MPO (`docs/algorithms/mpo.md`)" in text and "`benchmarks/results/`" in text
    assert "![" not in text and "\\1" not in text
