import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
# What each is given for its length, and what it must have said.
CASES = {
    "train_from_python": (1024, "The learning curve is in runs/ppo/Pendulum-v1"),
    "own_environment": (2048, "Push at 0 when the target is at 3: ["),
    "own_task": (4096, "Push, when the goal is to the right of a puck at rest: ["),
    "own_callback": (1024, "Stopped by the end of its steps at step 1,024."),
    "resume": (1024, "the same weights as without a stop: True"),
    "act_with_saved_policy": (1, "episode 0: return"),
}


def test_every_example_is_tried() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_example_runs(name: str, tmp_path: Path) -> None:
    length, said = CASES[name]
    ended = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py"), str(length)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(EXAMPLES.parent), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert said in ended.stdout
    assert ended.stderr == ""
