"""A task of one's own, as `docs/tasks.md` shows it."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from minerva.environments import make
from minerva.environments.tasks import Start, Task, register, unsupported_reason
from tests.environments.optional import needs
from tests.environments.tiny_task import MODEL

pytestmark = needs("mujoco")


class Slide(Task):
    """Bring a cart to the middle; it starts at a random place."""

    refresh = True

    def __init__(self, *, cost: float = 0.1) -> None:
        self.cost = cost
        super().__init__()

    def build(self) -> Any:
        import mujoco

        return mujoco.MjModel.from_xml_string(MODEL)

    def reset(self, random: Any) -> Start:
        return Start(random.uniform(-1, 1, 2), np.zeros((len(random.environments), 2)))

    def observation(self, now: Any) -> Any:
        return {"place": now["taken"], "velocity": now.qvel}

    def reward(self, before: Any, actions: Any, now: Any) -> Any:
        return -abs(now.qpos[:, 1]) - self.cost * (actions**2).sum(axis=-1)

    def terminated(self, now: Any) -> Any:
        return abs(now.qpos[:, 1]) > 25


if "minerva-tests/Slide-v0" not in gymnasium.registry:
    register("minerva-tests/Slide-v0", Slide, max_episode_steps=7)


def test_a_registered_task_is_an_environment_of_gymnasium() -> None:
    env = gymnasium.make("minerva-tests/Slide-v0", cost=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that bounds are infinite
        check_env(env.unwrapped, skip_render_check=True)
    _, _ = env.reset(seed=3)
    steps = [env.step(np.array([1.0], dtype=np.float32)) for _ in range(7)]
    assert [step[3] for step in steps] == [False] * 6 + [True]
    assert [step[2] for step in steps] == [False] * 6 + [True]  # the cart has left its track
    assert steps[0][0]["velocity"].tolist() == [0.0, 1.0]
    env.close()


def test_a_registered_task_runs_on_both_backends_alike() -> None:
    assert unsupported_reason("minerva-tests/Slide-v0", {"cost": 0.2}) is None
    assert "size" in str(unsupported_reason("minerva-tests/Slide-v0", {"size": 0.2}))
    one, other = (make("minerva-tests/Slide-v0", 2, 5, backend=backend) for backend in ("mujoco", "gymnasium"))
    assert one.raw_observation_space == other.raw_observation_space
    assert one.action_space == other.action_space
    first = one.reset()
    other.reset()
    # The same state, put there: starts are drawn in other ways.
    for i, env in enumerate(other._group.envs):  # type: ignore[attr-defined]
        inner = env.unwrapped
        inner._now = type(inner._now)(*(part[i : i + 1].copy() for part in one._simulations))  # type: ignore[attr-defined]
    assert first.shape == (2, 3)
    for number in range(9):
        actions = np.full((2, 1), 1 - 0.2 * number, dtype=np.float32)
        mine, theirs = one.step(actions), other.step(actions)
        assert mine.restarting.tolist() == theirs.restarting.tolist()
        assert mine.truncated.tolist() == theirs.truncated.tolist() == [number == 6] * 2
        if number < 7:
            np.testing.assert_array_equal(mine.observations, theirs.observations)
            np.testing.assert_array_equal(mine.rewards, theirs.rewards)
    one.close()
    other.close()


def test_a_function_that_is_missing_is_named() -> None:
    with pytest.raises(NotImplementedError, match=r"Task must have a function build that returns a mujoco.MjModel"):
        Task()
