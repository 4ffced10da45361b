import os
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_a_flipped_sign_fails_and_names_the_formula(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "minerva", tmp_path / "minerva", ignore=shutil.ignore_patterns("__pycache__", "katex"))
    (tmp_path / "tests" / "objectives").mkdir(parents=True)
    for name in ("pyproject.toml", "tests/conftest.py", "tests/objectives/test_weighted.py"):
        shutil.copy(REPOSITORY / name, tmp_path / name)
    objective = tmp_path / "minerva" / "objectives" / "weighted.py"
    source = objective.read_text()
    assert source.count("(x - weighted_mean(x, weights))") == 1
    objective.write_text(source.replace("(x - weighted_mean(x, weights))", "(x + weighted_mean(x, weights))"))

    # This process's own path would find the real package first.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-m", "pytest", "tests", "-p", "no:cacheprovider"]
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "test_variance_by_hand" in ended.stdout and "formula held by this test" in ended.stdout
    held = r"minerva.objectives.weighted: \mathrm{Var}[x] = \mathbb{E}\left[(x - \mathbb{E}[x])^2\right]"
    assert held in ended.stdout.splitlines()
    assert r"\frac{\sum_b w_b x_b}" not in ended.stdout  # the mean is as it was
