from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import minerva

ROOT = Path(minerva.__file__).parents[1]


def command(*arguments: object, folder: Path) -> subprocess.CompletedProcess[str]:
    parts = [sys.executable, "-m", "minerva.compat.stable_baselines", *map(str, arguments)]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    return subprocess.run(parts, capture_output=True, text=True, cwd=folder, env=environment)


SCRIPT = """\
import pickle, sys
from multiprocessing import get_context
import gym
import gym.spaces
import helper
import stable_baselines
import stable_baselines.bench
import tensorflow as tf
from gym.envs.registration import register

class Mine(gym.Env):
    def name(self):
        import gym as again
        return again.spaces.Box.__module__

def named(env):
    return env.name()

if __name__ == "__main__":
    import minerva.compat.gym
    assert gym is minerva.compat.gym and sys.modules["gym.spaces"] is sys.modules["minerva.compat.gym.spaces"]
    assert gym.__spec__.name == "minerva.compat.gym"
    assert stable_baselines.bench.__name__ == "minerva.compat.stable_baselines.bench"
    assert pickle.loads(pickle.dumps(Mine())).name() == "gymnasium.spaces.box"
    assert tf.nn.relu.__name__ == "relu" and tf.compat.v1.nn.tanh.__name__ == "tanh"
    tf.compat.v1.logging.set_verbosity(tf.logging.ERROR)
    for name, sentence in [("layers", "tensorflow.layers is not available")]:
        try:
            getattr(tf, name)
        except AttributeError as error:
            assert sentence in str(error)
    try:
        import stable_baselines.deepq.build_graph
    except ImportError as error:
        print(error)
    print(sys.argv[1:], __file__, helper.VALUE)
    with get_context("spawn").Pool(1) as pool:
        print(pool.apply(named, (Mine(),)))
"""


def test_a_script_runs_unchanged_with_its_worker_processes(tmp_path: Path) -> None:
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "script.py").write_text(SCRIPT)
    (folder / "helper.py").write_text("import gym\nVALUE = gym.spaces.Discrete(3).n\n")
    result = command("scripts/script.py", "--steps", "5", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    missing, arguments, worker = result.stdout.splitlines()
    assert missing.startswith("stable_baselines.deepq")
    assert arguments == "['--steps', '5'] scripts/script.py 3"
    assert worker == "gymnasium.spaces.box"


def test_a_traceback_begins_at_the_script_and_the_exit_code_is_the_scripts(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import gym\ndef f():\n    raise KeyError('x')\nf()\n")
    result = command("bad.py", folder=tmp_path)
    assert result.returncode == 1
    lines = result.stderr.splitlines()
    assert lines[0].startswith("Traceback")
    assert lines[1].strip() == 'File "bad.py", line 4, in <module>'
    (tmp_path / "leave.py").write_text("import sys\nsys.exit(7)\n")
    assert command("leave.py", folder=tmp_path).returncode == 7


def test_renaming_prints_the_script_or_changes_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import gym\n")
    script.chmod(0o755)
    expected = "import minerva.compat.gym as gym\n"
    assert command("--rename", "script.py", folder=tmp_path).stdout == expected
    assert script.read_text() == "import gym\n"
    assert command("--rename", "--in-place", "script.py", folder=tmp_path).returncode == 0
    assert script.read_text() == expected
    assert script.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def test_mistakes_get_one_line(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text("print 'x'\n")
    for arguments, sentence in [
        (["nothing.py"], "script: nothing.py cannot be read"),
        (["--rename", "two.py"], "script: two.py is not valid Python"),
        (["--in-place", "two.py"], "--in-place: needs --rename"),
    ]:
        result = command(*arguments, folder=tmp_path)
        assert result.returncode == 2
        assert sentence in result.stderr.splitlines()[-1]


WORKERS = """\
import gym
from stable_baselines.common.vec_env import SubprocVecEnv

class Mine(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (1,))
    action_space = gym.spaces.Discrete(2)

    def reset(self):
        return [0.5]

    def step(self, action):
        import gym as in_worker
        return [0.25], 1.0, False, {"module": in_worker.__name__}

gym.register("Mine-v0", entry_point=Mine)
env = SubprocVecEnv([lambda: gym.make("Mine-v0")] * 2)
print(env.reset().tolist(), env.step([0, 1])[3])
env.close()
"""


def test_environments_of_a_script_run_in_workers(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(WORKERS)
    result = command("script.py", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "[[0.5], [0.5]] [{'module': 'minerva.compat.gym'}, {'module': 'minerva.compat.gym'}]\n"
