from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from docs import speed


def measurement(**changes: Any) -> dict[str, Any]:
    return {
        "algorithm": "ppo",
        "env_id": "dm_control/cheetah/run",
        "steps_per_second": 4321.0,
        "shares": {"acting": 0.1, "simulating": 0.6, "updating": 0.25, "rest": 0.05},
        "settings": {"num_envs": 8},
        **changes,
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(speed, "SPEED", tmp_path)
    (tmp_path / "bench").mkdir()
    return tmp_path / "bench"


def test_a_bar_shows_the_shares_of_a_measurement_and_its_numbers_stand_below(folder: Path) -> None:
    (folder / "a.json").write_text(json.dumps(measurement()))
    own = measurement(algorithm="mpo", env_id="<Own>", steps_per_second=12.0, settings={"num_envs": 1})
    (folder / "b.json").write_text(json.dumps(own))
    figure = ET.fromstring(speed.time_shares("bench", ""))  # it is well-formed, whatever an environment is called
    assert len(figure) == 2
    for run, name, rate in zip(
        figure, ("PPO on run, 8 environments", "MPO on <Own>, 1 environment"), ("4,321", "12"), strict=True
    ):
        head, bar, parts = run
        assert list(head.itertext()) == [name, f"{rate} steps/s"]
        widths = {part.attrib["class"]: part.attrib["style"] for part in bar}
        assert widths == {
            f"shares__{part}": f"width:{100 * measurement()['shares'][part]:.2f}%" for part in speed.PARTS
        }
        assert ["".join(part.itertext()) for part in parts] == [
            "simulating 60%",
            "acting 10%",
            "rest 5%",
            "updating 25%",
        ]


def test_a_share_that_would_round_to_nothing_says_so(folder: Path) -> None:
    shares = {"acting": 0.004, "simulating": 0.0, "updating": 0.99, "rest": 0.006}
    (folder / "a.json").write_text(json.dumps(measurement(shares=shares)))
    ((_, _, parts),) = ET.fromstring(speed.time_shares("bench", ""))
    assert ["".join(part.itertext()) for part in parts] == ["simulating 0%", "acting <1%", "rest 1%", "updating 99%"]


def test_nothing_to_show_is_an_error(folder: Path) -> None:
    with pytest.raises(ValueError, match="there is no measurement"):
        speed.time_shares("bench", "")
