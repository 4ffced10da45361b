from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from minerva.compat import gym
from minerva.compat.stable_baselines.bench import Monitor, get_monitor_files, load_results
from minerva.compat.stable_baselines.bench.monitor import LoadMonitorResultsError, Results


class Fixed(gym.Env):
    """Episodes of three steps with the rewards 1, 2, 3."""

    observation_space = gym.spaces.Box(-1, 1, (1,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, track: str | None = None) -> Any:
        self.steps = 0
        return np.zeros(1, np.float32)

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.zeros(1, np.float32), self.steps, self.steps == 3, {"success": 0.5}


def episode(env: Any, **arguments: Any) -> dict[str, Any]:
    env.reset(**arguments)
    steps = [env.step(0) for _ in range(3)]
    assert "episode" not in steps[1][-1]
    info: dict[str, Any] = steps[-1][-1]["episode"]
    return info


def test_the_file_has_a_header_and_a_line_per_episode(tmp_path: Path) -> None:
    env = Monitor(Fixed(), str(tmp_path / "log"), reset_keywords=("track",), info_keywords=("success",))
    first = episode(env, track="a")
    episode(env, track="b")
    assert {**first, "t": 0} == {"r": 6.0, "l": 3, "t": 0, "track": "a", "success": 0.5}
    lines = (tmp_path / "log.monitor.csv").read_text().splitlines()
    assert json.loads(lines[0][1:]) == {"t_start": env.t_start, "env_id": None}
    rows = list(csv.DictReader(lines[1:]))
    assert lines[1] == "r,l,t,track,success"
    assert [(row["r"], row["l"], row["track"]) for row in rows] == [("6.0", "3", "a"), ("6.0", "3", "b")]
    assert env.get_total_steps() == 6
    assert env.get_episode_rewards() == [6.0, 6.0]
    assert env.get_episode_lengths() == [3, 3]
    assert env.get_episode_times() == sorted(env.get_episode_times())
    env.close()


def test_names_of_files(tmp_path: Path) -> None:
    Monitor(gym.make("CartPole-v1"), tmp_path).close()
    Monitor(Fixed(), str(tmp_path / "x.monitor.csv")).close()
    Monitor(Fixed(), str(tmp_path / "0")).close()
    names = ["0.monitor.csv", "monitor.csv", "x.monitor.csv"]
    assert get_monitor_files(tmp_path) == [str(tmp_path / name) for name in names]
    assert json.loads((tmp_path / "monitor.csv").read_text().splitlines()[0][1:])["env_id"] == "CartPole-v1"


def test_what_it_refuses() -> None:
    env = Monitor(Fixed(), None, allow_early_resets=False, reset_keywords=("track",), info_keywords=("missing",))
    with pytest.raises(RuntimeError, match="call reset"):
        env.step(0)
    with pytest.raises(ValueError, match="track: must be an argument of reset"):
        env.reset()
    env.reset(track="a")
    with pytest.raises(RuntimeError, match="allow_early_resets=True"):
        env.reset(track="a")
    env.step(0)
    env.step(0)
    with pytest.raises(KeyError, match="missing: must be in the info"):
        env.step(0)


def test_an_environment_of_gymnasium_keeps_its_interface() -> None:
    env = Monitor(gymnasium.make("CartPole-v1"), None)
    observation, info = env.reset(seed=4)
    assert env.seed(4) == [4]
    assert np.array_equal(env.reset()[0], observation)
    ended = False
    while not ended:
        _, _, terminated, truncated, info = env.step(0)
        ended = terminated or truncated
    assert info["episode"]["r"] == info["episode"]["l"] == env.get_total_steps()
    assert env.unwrapped is env._inner.unwrapped
    assert len(Monitor(gym.make("CartPole-v1")).env.reset()) == 4


def write(path: Path, start: float, rows: list[str]) -> None:
    path.write_text("\n".join([f'#{{"t_start": {start}, "env_id": "X"}}', "r,l,t", *rows]) + "\n")


def test_results_of_several_files_are_in_the_order_of_time(tmp_path: Path) -> None:
    write(tmp_path / "0.monitor.csv", 100.0, ["1.5,10,1.0", "2.5,20,9.0"])
    write(tmp_path / "1.monitor.csv", 102.0, ["3.5,30,2.0"])
    results = load_results(str(tmp_path))
    assert results.r.values.tolist() == [1.5, 3.5, 2.5]
    assert results["l"].tolist() == [10, 30, 20]
    assert results.t.tolist() == [1.0, 4.0, 9.0]
    assert list(results.columns) == ["index", "r", "l", "t"]
    assert len(results) == 3
    early = results[results.l.cumsum() <= 40]
    assert early.r.values.tolist() == [1.5, 3.5]
    assert early.r.mean() == 2.5
    with pytest.raises(AttributeError, match="colour"):
        _ = Results({"r": [1.0]}).colour
    (tmp_path / "empty").mkdir()
    with pytest.raises(LoadMonitorResultsError, match=r"no files \*monitor.csv"):
        load_results(tmp_path / "empty")


def test_worker_processes_import_it_without_torch() -> None:
    code = "import sys, minerva.compat.stable_baselines.bench, minerva.compat.gym; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
