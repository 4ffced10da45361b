from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from minerva.environments import choose_backend, make
from minerva.trainers.config import RunConfig
from tests.environments.optional import needs
from tests.environments.tiny_envs import Noisy

pytestmark = needs("mujoco", "envpool")


def test_auto_takes_mujoco_where_it_has_the_task_and_says_why_not() -> None:
    assert choose_backend("HalfCheetah-v5") == ("mujoco", "auto: it has this task")
    assert choose_backend("dm_control/walker/run", num_envs=64)[0] == "mujoco"
    assert choose_backend("Ant-v5", {"healthy_z_range": (0.3, 1.0), "max_episode_steps": 9})[0] == "mujoco"
    assert choose_backend("CartPole-v1", num_envs=64) == (
        "gymnasium",
        "auto: the MuJoCo backend has no task CartPole-v1",
    )
    assert choose_backend("HalfCheetah-v4")[0] == "gymnasium"
    assert choose_backend("HalfCheetah-v5", {"xml_file": "mine.xml"}) == (
        "gymnasium",
        "auto: the MuJoCo backend's HalfCheetah-v5 does not accept xml_file (in env_kwargs)",
    )
    assert choose_backend(Noisy) == (
        "gymnasium",
        "auto: the MuJoCo backend runs tasks by their id, not environments from your own function",
    )
    assert choose_backend("HalfCheetah-v5", vectorization="subprocess") == (
        "gymnasium",
        "auto: only Gymnasium has worker processes",
    )


def test_auto_takes_envpool_for_atari_from_where_it_is_faster() -> None:
    assert choose_backend("ALE/Pong-v5", num_envs=16, threads=2) == ("envpool", "auto: it is the fastest for Atari")
    assert choose_backend("ALE/Pong-v5", num_envs=15, threads=2) == (
        "gymnasium",
        "auto: EnvPool is faster from 16 environments",
    )
    assert choose_backend("ALE/Pong-v5", num_envs=4, threads=16)[0] == "envpool"
    assert choose_backend("ALE/Pong-v5", {"max_num_frames_per_episode": 9}, 64)[0] == "gymnasium"


def test_the_description_says_what_auto_chose() -> None:
    def said(name: Any, num_envs: int, **arguments: Any) -> str:
        batch = make(name, num_envs, backend="auto", **arguments)
        batch.close()
        return batch.description

    assert said("Hopper-v5", 2, pool_threads=2) == "MuJoCo, 2 environments, 2 threads (auto: it has this task)"
    assert said("Pendulum-v1", 1).endswith("in process (auto: the MuJoCo backend has no task Pendulum-v1)")


def in_python(program: str) -> str:
    """Run a program in a process that has imported nothing."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    return done.stdout


def test_without_mujoco_a_sentence_says_so() -> None:
    said = in_python(
        "import sys; sys.modules['mujoco'] = None\n"
        "from minerva.environments import choose_backend, make\n"
        "print(choose_backend('HalfCheetah-v5'))\n"
        "try: make('HalfCheetah-v5', backend='mujoco')\n"
        "except ValueError as error: print(error)"
    )
    reason = 'MuJoCo is not installed: pip install "minerva-rl[mujoco]"'
    assert said == f"('gymnasium', '{'auto: ' + reason}')\nbackend: {reason}; use backend gymnasium, or auto for " + (
        "MuJoCo where it has the task.\n"
    )


def test_nothing_is_imported_that_is_not_used() -> None:
    said = in_python(
        "import sys, minerva; from minerva import environments; first = 'mujoco' in sys.modules\n"
        "environments.make('Hopper-v5', 2, backend='mujoco').close()\n"
        "print(first, 'mujoco' in sys.modules, {'jax', 'envpool', 'dm_control'} & sys.modules.keys())"
    )
    assert said == "False True set()\n"


def test_a_backend_with_threads_has_no_worker_processes() -> None:
    for backend in ("mujoco", "envpool"):
        with pytest.raises(ValueError, match=f"vectorization: must be 'sync' with backend '{backend}'"):
            RunConfig(backend=backend, vectorization="subprocess")
