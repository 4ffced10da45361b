from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from minerva.environments import EnvFactory, EnvironmentFailureError, GymnasiumBatch, make
from minerva.environments.groups import IDLE, STEP
from minerva.environments.workers import LocalGroup, SubprocessGroup
from tests.environments.optional import needs
from tests.environments.tiny_envs import Failing, Noisy, Tiny, Writing

NO_ACTIONS = np.zeros((3, 1), dtype=np.float32)


def workers_of(group: SubprocessGroup) -> list[int]:
    return [process.pid for process, _ in group._workers]


def is_alive(pid: int) -> bool:
    try:
        # A process that has exited but was not waited for is a zombie (Z).
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pids: list[int], seconds: float) -> bool:
    limit = time.monotonic() + seconds
    while any(is_alive(pid) for pid in pids):
        if time.monotonic() > limit:
            return False
        time.sleep(0.02)
    return True


def test_orders_are_carried_out_one_environment_at_a_time() -> None:
    group = LocalGroup([partial(Tiny, "terminates", i) for i in range(3)])
    outcome = group.apply(NO_ACTIONS, np.array([5, 6, IDLE]))
    assert outcome.observations[:2].tolist() == [[0, 0, 0, 0], [1, 0, 0, 0]]
    outcome = group.apply(NO_ACTIONS, np.array([STEP, IDLE, 7]))
    assert outcome.observations.tolist() == [[0, 0, 1, 0], [1, 0, 0, 0], [2, 0, 0, 0]]
    assert outcome.rewards.tolist() == [2, 0, 0]
    group.close()


def test_workers_share_the_environments_evenly_and_in_order() -> None:
    group = SubprocessGroup([partial(Tiny, "terminates", i) for i in range(3)], num_workers=2)
    assert group.description == "2 worker processes"
    outcome = group.apply(NO_ACTIONS, np.array([5, 6, 7]))
    assert outcome.observations[:, 0].tolist() == [0, 1, 2]
    group.close()
    one = SubprocessGroup([Noisy], num_workers=8)
    assert len(workers_of(one)) == 1
    assert one.description == "1 worker process"
    one.close()


def test_an_answer_next_to_a_failure_is_not_read_as_the_next_one() -> None:
    group = SubprocessGroup([partial(Failing, "x", 1), Noisy], 2)
    alone = LocalGroup([Noisy])
    actions = np.zeros((2, 1), dtype=np.float32)
    group.apply(actions, np.array([5, 6]))
    alone.apply(actions[1:], np.array([6]))
    with pytest.raises(EnvironmentFailureError):
        group.apply(actions, np.array([STEP, STEP]))
    alone.apply(actions[1:], np.array([STEP]))
    seen = group.apply(actions, np.array([IDLE, STEP])).observations[1]
    assert seen.tolist() == alone.apply(actions[1:], np.array([STEP])).observations[0].tolist()
    group.close()
    alone.close()


def test_a_worker_does_not_import_torch() -> None:
    # A worker that imports it takes ten times as long to start and six times the memory.
    code = "import sys; from minerva.environments.workers import work; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_discrete_actions_are_numpy_integers_except_for_gymnasium_classes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[Any] = []

    class Watching(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            given.append(action)
            return self.env.step(action)

    cart_pole = type(gymnasium.make("CartPole-v1").unwrapped)
    step = cart_pole.step

    def watched(env: Any, action: Any) -> Any:
        given.append(action)
        return step(env, action)

    monkeypatch.setattr(cart_pole, "step", watched)
    factories: list[EnvFactory] = [
        lambda: gymnasium.make("CartPole-v1"),
        lambda: Watching(gymnasium.make("CartPole-v1")),
    ]
    for factory, kind in zip(factories, (int, np.int64), strict=True):
        batch = GymnasiumBatch([factory], 0)
        batch.reset()
        batch.step(np.array([[1.0]], dtype=np.float32))
        batch.close()
        assert given and all(type(action) is kind and action == 1 for action in given)
        given.clear()


def test_an_environment_may_write_into_its_action() -> None:
    group = LocalGroup([Writing])
    actions = np.array([[0.25]], dtype=np.float32)
    group.apply(actions, np.array([3]))
    group.apply(actions, np.array([STEP]))
    assert actions.tolist() == [[0.25]]
    group.close()


@pytest.mark.parametrize("vectorization", ["sync", "subprocess"])
class TestFailures:
    def batch(self, vectorization: Any, what: str, at: int) -> Any:
        factories: list[EnvFactory] = [Noisy, Noisy, partial(Failing, what, at)]
        return GymnasiumBatch(factories, 1, vectorization, 2)

    def test_an_environment_that_raises_in_reset(self, vectorization: str) -> None:
        batch = self.batch(vectorization, "no battery", 0)
        with pytest.raises(EnvironmentFailureError, match="environment 2 raised RuntimeError in reset: no battery"):
            batch.reset()
        batch.close()

    def test_an_environment_that_raises_in_step(self, vectorization: str) -> None:
        batch = self.batch(vectorization, "fell over", 2)
        batch.reset()
        batch.step(NO_ACTIONS)
        saved = batch.state_dict()
        with pytest.raises(EnvironmentFailureError, match="environment 2 raised OSError in step: fell over"):
            batch.step(NO_ACTIONS)
        # The failed step changed no state: the run can be saved as it was before.
        assert batch.state_dict()["actions"][0].tolist() == saved["actions"][0].tolist()
        assert batch.state_dict()["observations"].tolist() == saved["observations"].tolist()
        # But the other environments have taken it, so this batch cannot be used any more.
        with pytest.raises(EnvironmentFailureError, match="an environment failed before: make a new trainer"):
            batch.step(NO_ACTIONS)
        batch.close()

    def test_an_environment_that_raises_in_a_replay(self, vectorization: str) -> None:
        good = self.batch("sync", "x", 90)
        good.reset()
        for _ in range(3):
            good.step(NO_ACTIONS)
        batch = self.batch(vectorization, "fell over", 2)
        note = batch.load_state_dict(good.state_dict())
        assert note is not None
        assert "environment 2 did not return to its saved state, because it raised OSError" in note
        assert batch.restarts_next.tolist() == [False, False, True]
        batch.close()

    @pytest.mark.parametrize(
        ("what", "message"),
        [
            ("nan observation", "environment 2 returned an observation with nan at position 1"),
            ("inf observation", "environment 2 returned an observation with inf at position 0"),
            ("nan reward", "environment 2 returned the reward nan"),
        ],
    )
    def test_values_that_are_not_finite(self, vectorization: str, what: str, message: str) -> None:
        batch = self.batch(vectorization, what, 1)
        batch.reset()
        with pytest.raises(EnvironmentFailureError, match=message):
            batch.step(NO_ACTIONS)
        batch.close()

    def test_closing_twice(self, vectorization: Any) -> None:
        closed = 0

        class Closing(Noisy):
            def close(self) -> None:
                nonlocal closed
                closed += 1
                assert closed == 1

        batch = make(Closing, vectorization=vectorization)
        batch.close()
        batch.close()
        assert closed == (1 if vectorization == "sync" else 0)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_worker_that_is_killed(at_once: bool) -> None:
    group = SubprocessGroup([Noisy] * 3, num_workers=2)
    group.apply(NO_ACTIONS, np.array([1, 2, 3]))
    os.kill(workers_of(group)[1], signal.SIGKILL)
    if not at_once:
        assert wait_until_gone(workers_of(group)[1:], 5)
    message = r"the worker process of environments 1 to 2 died \(exit code -9\)"
    with pytest.raises(EnvironmentFailureError, match=message):
        group.apply(NO_ACTIONS, np.array([STEP] * 3))
    pids = workers_of(group)
    group.close()
    assert wait_until_gone(pids, 0)


def test_workers_end_when_the_batch_is_closed() -> None:
    group = SubprocessGroup([Noisy] * 2, num_workers=2)
    pids, processes = workers_of(group), [process for process, _ in group._workers]
    assert all(is_alive(pid) for pid in pids)
    group.close()
    assert [process.returncode for process in processes] == [0, 0]  # they exited without being killed
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)  # waited for: no zombies


def test_a_worker_that_hangs_is_killed() -> None:
    class Hanging(Noisy):
        def close(self) -> None:
            time.sleep(60)

    group = SubprocessGroup([Hanging], num_workers=1)
    pids = workers_of(group)
    begin = time.monotonic()
    group.close()
    assert 1.5 < time.monotonic() - begin < 10
    assert wait_until_gone(pids, 0)


SCRIPT = """
import gymnasium, numpy as np, os, signal, sys
from minerva.environments import make

class Local(gymnasium.Wrapper):  # of a script without an `if __name__ == "__main__"`
    pass

batch = make(lambda: Local(gymnasium.make("Pendulum-v1")), num_envs=2, vectorization="subprocess", num_workers=2)
batch.reset()
batch.step(np.zeros((2, 1), dtype=np.float32))
print(*(process.pid for process, _ in batch._group._workers), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path])}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    assert wait_until_gone(pids, 10)


def test_factories_that_cannot_be_imported() -> None:
    gravity = 2.5

    class OwnBox(spaces.Box):
        pass

    class Local(gymnasium.Wrapper[Any, Any, Any, Any]):
        def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
            super().__init__(env)
            self.observation_space = OwnBox(-9, 9, (3,))

        def step(self, action: Any) -> Any:
            observation, _, *rest = super().step(action)
            return observation, gravity, *rest

    batch = make(lambda: Local(gymnasium.make("Pendulum-v1")), num_envs=2, vectorization="subprocess")
    batch.reset()
    assert batch.step(np.zeros((2, 1), dtype=np.float32)).rewards.tolist() == [2.5, 2.5]
    assert type(batch.raw_observation_space).__name__ == "OwnBox"
    batch.close()


def test_a_factory_that_cannot_be_pickled_starts_nothing() -> None:
    lock = threading.Lock()

    def factory() -> gymnasium.Env[Any, Any]:
        with lock:
            return Noisy()

    with pytest.raises(TypeError, match="cannot pickle"):
        make(factory, vectorization="subprocess")


class Unloadable:
    def __reduce__(self) -> Any:
        return eval, ("[][0]",)

    def __call__(self) -> gymnasium.Env[Any, Any]:
        return Noisy()


def test_a_factory_that_cannot_be_unpickled_is_reported() -> None:
    with pytest.raises(EnvironmentFailureError, match="could not be made in a worker process: IndexError"):
        make(Unloadable(), vectorization="subprocess")


def test_an_environment_that_cannot_be_made_in_a_worker() -> None:
    def missing() -> gymnasium.Env[Any, Any]:
        raise FileNotFoundError("model.xml")

    with pytest.raises(EnvironmentFailureError, match=r"could not be made .*: FileNotFoundError: model\.xml") as caught:
        make(missing, num_envs=2, vectorization="subprocess")
    assert "raise FileNotFoundError" in str(caught.value.__cause__)  # the worker's own traceback
    with pytest.raises(ValueError, match=r"env: Pendulum-v1 could not be made with \{'gravity': 1\}"):
        make("Pendulum-v1", vectorization="subprocess", env_kwargs={"gravity": 1})


WORK = """
import numpy as np
from minerva.environments import make

batch = make("Pendulum-v1", num_envs=1, vectorization="subprocess", num_workers=1)
print(batch.reset().shape, batch.step(np.zeros((1, 1), dtype=np.float32)).observations.shape)
batch.close()
"""


def run_script(script: Path, *folders: Path) -> str:
    """Run a script that finds packages in some folders; return what it printed."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*folders, root)))}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs("cv2")
def test_workers_start_after_an_import_of_opencv_has_failed(tmp_path: Path) -> None:
    found = importlib.util.find_spec("cv2")
    assert found is not None and found.origin is not None
    without_library = shutil.ignore_patterns("*.so", "data", "__pycache__")
    shutil.copytree(Path(found.origin).parent, tmp_path / "lib" / "cv2", ignore=without_library)
    script = tmp_path / "script.py"
    broken = tmp_path / "lib" / "cv2"
    script.write_text(
        "import sys\ntry:\n    import cv2\nexcept ImportError:\n    print('failed')\n"
        f"assert {str(broken)!r} in sys.path\n{WORK}"
    )
    assert run_script(script, tmp_path / "lib").endswith("failed\n(1, 3) (1, 3)\n")  # OpenCV prints its path before


def test_workers_import_from_the_folder_of_a_script_in_a_package(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "beside.py").write_text("import gymnasium\n\n\ndef build():\n    return gymnasium.make('Pendulum-v1')\n")
    script = package / "script.py"
    script.write_text("from beside import build\n" + WORK.replace('"Pendulum-v1"', "build"))
    assert run_script(script, tmp_path) == "(1, 3) (1, 3)\n"
