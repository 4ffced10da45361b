from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from docs import scale
from docs.figures import BOTTOM, HEIGHT, RIGHT, TOP, WIDTH

FOUND = {
    "sweep_costs": [{"run": 0.4, "central": 0.002}, {"run": 0.6, "central": 0.004}],
    "sweeps": [
        {
            "slots": 100, "runs": {"count": 2000, "shortest": 10.0, "longest": 20.0}, "nodes_killed": 1,
            "predicted": 350.4, "seconds": 360.6, "ratio": 1.029,
        }
    ],
    "nodes": 10,
    "rollout_costs": [
        {
            "learner_call": 0.001, "learner_bytes_per_second": 2.5e9,
            "call": 0.005, "bytes_per_second": 1e9, "weights_bytes_per_second": 1e9,
        }
    ],
    "rollout_tasks": {
        "images": {
            "name": "images", "steps": 100, "environments": 10, "bytes_per_step": 25_000, "parameters": 0,
            "step": 0.01, "update": 9e-5, "knee": 1.0,
        }
    },
    "rollouts": [
        {"task": "images", "workers": 100, "predicted": 2.0, "seconds": 2.2, "ratio": 1.1, "limit": "learner"},
        {"task": "images", "workers": 10, "predicted": 1.0, "seconds": 1.0, "ratio": 1.0, "limit": "workers"},
    ],
}  # fmt: skip


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "RESULTS", tmp_path / "found.json")
    scale.RESULTS.write_text(json.dumps(FOUND))


def rows(name: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in scale.part(name, "").splitlines()[2:]]


def test_what_was_measured_stands_beside_what_was_predicted() -> None:
    assert rows("measured sweeps") == [["2,000", "15 s", "100", "1", "350 s", "361 s", "1.03"]]
    assert [row[:4] for row in rows("measured rollouts")] == [
        ["images", "10", "1.00 s", "1.00 s"], ["images", "100", "2.00 s", "2.20 s"],
    ]  # fmt: skip


def test_a_large_sweep_is_the_models() -> None:
    # 3 ms of the sweep's process for each of 1,600 slots are 4.8 s, and a run itself costs its slot 0.5 s. 10,000 runs
    # of 60.5 s in 1,600 slots take 378 s, and 30 s until the last one ends. A run does 0.2 + 0.1 + 1/300 operations.
    assert rows("large sweep")[0] == ["16", "1,600", "4 s", "6.8 minutes", "6.8 hours", "885"]


def test_the_knee_is_where_the_learner_takes_as_long_as_the_workers() -> None:
    # A worker takes 1 s; the learner 1 ms, 20 ms for 25 MB at 10 Gbit/s, and 90 ms.
    assert rows("large rollouts") == [
        ["images", "9 workers", "47%, workers", "8%, learner", "1%, learner"]
    ]  # fmt: skip


def test_measured_points_are_drawn_on_the_curve() -> None:
    (figure,) = ET.fromstring(scale.part("rollout curves", ""))
    drawing = figure[1]
    dots = [dict(part.attrib) for part in drawing if part.tag == "circle"]
    curve = [tuple(map(float, point.split(","))) for point in drawing[2].attrib["points"].split()]
    # A worker takes 1 s. With 10 a round took 1 s, with 100 it took 2.2 s. With 200 it takes 1 + 200 · 0.12 s.
    high, room = 1.1 * 100 / 2.2, HEIGHT - TOP - BOTTOM
    assert [float(dot["cy"]) for dot in dots] == pytest.approx(
        [TOP + (1 - 100 / 2.2 / high) * room, TOP + (1 - 10 / high) * room], abs=0.1
    )
    assert curve[-1] == pytest.approx((WIDTH - RIGHT, TOP + (1 - 200 / 25 / high) * room), abs=0.1)


def test_another_table_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no 'small sweep', only measured sweeps, "):
        scale.part("small sweep", "")
