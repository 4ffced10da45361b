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


def test_a_bar_shows_the_shares_of_a_measurement(folder: Path) -> None:
    (folder / "a.json").write_text(json.dumps(measurement()))
    (folder / "b.json").write_text(json.dumps(measurement(algorithm="mpo", env_id="<Own>", steps_per_second=12.0)))
    figure = ET.fromstring(speed.time_shares("bench", ""))  # it is well-formed, whatever an environment is called
    (drawing,) = figure
    widths: dict[str, list[float]] = {}
    for rect in drawing.iter("rect"):
        if rect.find("title") is not None:
            widths.setdefault(rect.attrib["class"], []).append(float(rect.attrib["width"]))
    length = speed.WIDTH - speed.LEFT - speed.RIGHT
    assert widths.keys() == {f"shares__{part}" for part in speed.PARTS}
    for part, share in measurement()["shares"].items():
        assert widths[f"shares__{part}"] == pytest.approx([share * length] * 2, abs=0.06)
    words = [text.text for text in drawing.iter("text")]
    assert {"PPO, 8 × run", "4,321 steps/s", "MPO, 8 × <Own>", "12 steps/s", "60%"} <= set(words)
    assert "PPO, 8 × run: simulating 60%, acting 10%, rest 5%, updating 25%" in drawing.attrib["aria-label"]


def test_bars_stand_end_to_end(folder: Path) -> None:
    (folder / "a.json").write_text(json.dumps(measurement()))
    rects = [r for r in ET.fromstring(speed.time_shares("bench", "")).iter("rect") if r.find("title") is not None]
    ends = [float(r.attrib["x"]) + float(r.attrib["width"]) for r in rects]
    assert float(rects[0].attrib["x"]) == speed.LEFT
    assert [float(r.attrib["x"]) for r in rects[1:]] == pytest.approx(ends[:-1], abs=0.11)
    assert ends[-1] == pytest.approx(speed.WIDTH - speed.RIGHT, abs=0.11)


def test_nothing_to_show_is_an_error(folder: Path) -> None:
    with pytest.raises(ValueError, match="there is no measurement"):
        speed.time_shares("bench", "")
