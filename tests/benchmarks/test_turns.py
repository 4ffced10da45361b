from pathlib import Path

from benchmarks.turns import duel

TREE = Path(__file__).parents[2]


def test_a_version_that_needs_twice_the_time_has_a_ratio_of_a_half(tmp_path: Path) -> None:
    (tmp_path / "minerva").symlink_to(TREE / "minerva")
    (tmp_path / "sitecustomize.py").write_text(
        "import time\nreal = time.process_time\ntime.process_time = lambda: 2 * real()\n"
    )
    fields = {"algorithm": "ppo", "num_envs": 2, "rollout_steps": 64, "compile": False}
    result = duel({"before": TREE, "after": tmp_path}, "Pendulum-v1", fields, turns=5, core=0)
    assert 0.35 < result["speed_ratio"] < 0.7
    assert len(result["seconds"]["before"]) == len(result["seconds"]["after"]) == 5
