from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import RescaleAction, TimeLimit

from minerva.environments import display_name, known_ids, make, resolve
from tests.environments.tiny_envs import Noisy


def test_a_gymnasium_id() -> None:
    env = resolve("Pendulum-v1")()
    assert env.spec is not None
    assert env.spec.id == "Pendulum-v1"
    env.close()


def test_arguments_reach_the_constructor() -> None:
    env = resolve("Pendulum-v1", {"g": 1.5, "max_episode_steps": 3})()
    assert env.get_wrapper_attr("g") == 1.5
    env.reset(seed=0)
    assert [env.step(env.action_space.sample())[3] for _ in range(3)] == [False, False, True]
    env.close()


def test_arguments_that_are_not_accepted_are_named() -> None:
    with pytest.raises(ValueError, match=r"env: Pendulum-v1 could not be made with \{'gravity': 1\}: .*gravity"):
        resolve("Pendulum-v1", {"gravity": 1})()
    with pytest.raises(ValueError, match=r"env: dm_control/cheetah/run could not be made with \{'speed': 1\}: .*speed"):
        resolve("dm_control/cheetah/run", {"speed": 1})()


def test_near_matches_of_an_unknown_id() -> None:
    with pytest.raises(ValueError, match=r"env: no environment is called 'HalfCheeta-v5'. Did you mean HalfCheetah-v5"):
        resolve("HalfCheeta-v5")
    with pytest.raises(ValueError, match=r"no environment is called 'qqqqqqqqqqqq'. `minerva envs` lists"):
        resolve("qqqqqqqqqqqq")


def test_a_missing_package_that_registers_environments() -> None:
    with pytest.raises(ValueError, match="env: no_such_package:Task-v0 could not be made with no arguments"):
        resolve("no_such_package:Task-v0")()


def test_a_dm_control_task() -> None:
    env = resolve("dm_control/cartpole/swingup", {"task_kwargs": {"time_limit": 0.05, "random": 1}})()
    env.reset(seed=0)
    ends = [env.step(np.zeros(1))[2:4] for _ in range(5)]
    # A time limit of dm_control is a truncation: the discount of the last step is 1.
    assert ends == [(False, False)] * 4 + [(False, True)]
    env.close()


@pytest.mark.parametrize(
    "name", ["dm_control/", "dm_control/cheetah", "dm_control/cheetah/", "dm_control//run", "dm_control/cheetah/run/x"]
)
def test_the_form_of_a_dm_control_id(name: str) -> None:
    message = f"env: the id of a dm_control task must be dm_control/<domain>/<task>, such as .*; got '{name}'"
    with pytest.raises(ValueError, match=message):
        resolve(name)


def test_near_matches_of_an_unknown_dm_control_task() -> None:
    with pytest.raises(ValueError, match=r"no task 'dm_control/cheetah/runn'. Did you mean dm_control/cheetah/run"):
        resolve("dm_control/cheetah/runn")
    with pytest.raises(ValueError, match="no task 'dm_control/0/0'"):
        resolve("dm_control/0/0")


def wrapped(length: int = 4) -> gymnasium.Env[Any, Any]:
    return RescaleAction(TimeLimit(Noisy(100), length), np.float32(-2), np.float32(2))


@pytest.mark.parametrize("length", [4, 2])
def test_a_factory_with_wrappers(length: int) -> None:
    batch = make(wrapped, num_envs=2, env_kwargs={} if length == 4 else {"length": length})
    assert batch.action_space == gymnasium.spaces.Box(-2.0, 2.0, (1,))
    batch.reset()
    ends = [batch.step(np.zeros((2, 1), dtype=np.float32)).truncated.tolist() for _ in range(length)]
    assert ends == [[False, False]] * (length - 1) + [[True, True]]
    batch.close()


def test_a_factory_that_returns_something_else() -> None:
    with pytest.raises(ValueError, match=r"env: the factory must return a gymnasium\.Env, got int"):
        make(lambda: 3)  # type: ignore[arg-type,return-value]


def test_display_names() -> None:
    assert display_name("HalfCheetah-v5") == "HalfCheetah-v5"
    assert display_name("dm_control/cheetah/run") == "dm_control/cheetah/run"
    assert display_name(wrapped) == f"custom:{__name__}.wrapped"
    assert display_name(Noisy) == "custom:tests.environments.tiny_envs.Noisy"
    assert display_name(partial(wrapped, 3)).startswith("custom:functools.")


def test_known_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    names = known_ids()
    assert names == sorted(names)
    for name in ("HalfCheetah-v5", "Pendulum-v1", "dm_control/cheetah/run", "dm_control/humanoid/walk"):
        assert name in names
    assert known_ids("CHEETAH/") == ["dm_control/cheetah/run"]
    assert known_ids("no such thing") == []
    assert not any("tabular" in name for name in names)
    # Without Shimmy's own names of the suite.
    monkeypatch.setitem(gymnasium.registry, "dm_control/cheetah-run-v0", gymnasium.spec("Pendulum-v1"))
    assert known_ids() == names


@pytest.mark.filterwarnings("ignore:.*out of date")
def test_ids_that_only_say_where_an_environment_has_gone_are_not_listed() -> None:
    resolve("dm_control/cartpole/swingup")().close()  # imports Shimmy, which registers its adapters
    gone = {"GymV21Environment-v0", "GymV26Environment-v0", "Ant-v2", "Hopper-v3"}
    assert gone <= set(gymnasium.registry) and not gone & set(known_ids())
    with pytest.raises(ValueError, match=r"env: Ant-v2 could not be made with no arguments: .*gymnasium-robotics"):
        resolve("Ant-v2")()


MADE = """
import sys
from minerva.environments import resolve

resolve("CartPole-v1")().close()
assert "mujoco" not in sys.modules  # a tenth of a second that CartPole would pay
resolve({id!r})().close()
assert "mujoco" in sys.modules
"""


QUIET = """
import warnings
from minerva.environments import resolve

resolve("dm_control/cartpole/balance")().close()
assert "dm_control.composer.environment" in __import__("sys").modules  # which switches deprecations on for everybody
warnings.warn("torch has plans", DeprecationWarning, stacklevel=100)
"""


def test_dm_control_does_not_switch_on_the_deprecation_warnings_of_others() -> None:
    done = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["HalfCheetah-v5", "gymnasium.envs.mujoco:HalfCheetah-v5"])
def test_mujoco_is_imported_for_its_own_tasks_alone_and_is_silent(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MADE.format(id=name)], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")


WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(["mujoco", "Box2D", "ale_py", "dm_control"]))  # as if not installed
from minerva.cli import main
from minerva.environments import resolve

for env in ("HalfCheetah-v5", "LunarLander-v3", "CarRacing-v3", "ALE/Pong-v5", "dm_control/cheetah/run"):
    try:
        resolve(env)()
    except ValueError as error:
        print(error)
sys.stderr = sys.stdout
main(["envs", "dm_control"])
"""


def test_a_missing_package_is_named_with_the_one_extra_that_installs_it() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", WITHOUT], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        'env: HalfCheetah-v5 needs MuJoCo, which is not installed: pip install "minerva-rl[mujoco]".',
        'env: LunarLander-v3 needs Box2D, which is not installed: pip install "minerva-rl[box2d]".',
        'env: CarRacing-v3 needs Box2D, which is not installed: pip install "minerva-rl[box2d]".',
        'env: ALE/Pong-v5 needs ale-py, which is not installed: pip install "minerva-rl[atari]".',
        'env: dm_control/cheetah/run needs dm_control, which is not installed: pip install "minerva-rl[dm-control]".',
        "minerva: envs: no id contains 'dm_control'; `minerva envs` lists all ids. Not listed, because a package is "
        'not installed: dm_control\'s tasks (pip install "minerva-rl[dm-control]"); Atari games '
        '(pip install "minerva-rl[atari]").',
    ]


def test_atari_games_without_opencv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(ValueError, match=r'^env: ALE/Pong-v5 needs OpenCV, .*: pip install "minerva-rl\[atari\]"\.$'):
        resolve("ALE/Pong-v5")()


def test_a_missing_package_that_no_extra_installs() -> None:
    def build(**kwargs: Any) -> gymnasium.Env[Any, Any]:
        raise gymnasium.error.DependencyNotInstalled("needs pip install rare")

    gymnasium.register("Rare-v0", build)
    try:
        with pytest.raises(ValueError, match=r"^env: Rare-v0 could not be made .*: needs pip install rare\.$"):
            resolve("Rare-v0")()
    finally:
        gymnasium.registry.pop("Rare-v0")


def test_dm_control_with_a_mujoco_that_it_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("mujoco.MjModel.geom_pos")  # MuJoCo 4 has no flex_vertedge
    with pytest.raises(
        ValueError,
        match=r"cheetah/run cannot be made: dm_control [\d.]+ does not work with MuJoCo [\d.]+ \(.*'geom_pos'"
        r'\); install versions that fit together: pip install "minerva-rl\[dm-control\]"\.$',
    ):
        resolve("dm_control/cheetah/run")()
