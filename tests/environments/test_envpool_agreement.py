"""EnvPool has the same dynamics and rewards as the Gymnasium backend, for every task with a preset.

The Gymnasium environment is set to the state that EnvPool observes, and both take the same actions. The state is copied
again every few steps, so that chaotic dynamics do not count as a difference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray
from scipy.optimize import least_squares

from minerva.environments import make, resolve
from minerva.environments.envpool_backend import unsupported_reason
from minerva.presets import algorithms_with_presets, load_presets
from tests.environments.optional import needs

Array = NDArray[np.float64]

STEPS = 150
RESYNC = 10
HINGE = 3  # MuJoCo's number for this kind of joint

SUPPORTED = sorted(
    name
    for name in {name for algorithm in algorithms_with_presets() for name in load_presets(algorithm)}
    if unsupported_reason(name) is None or "not installed" in str(unsupported_reason(name))
)
# Parts that depend on more than the joints: contact sensors and targets.
NOT_OF_THE_JOINTS = ("touch", "to_target")


def put_classic(env: Any, name: str, row: Array) -> None:
    if name == "Pendulum-v1":
        env.state = np.array([np.arctan2(row[1], row[0]), row[2]])
    elif name == "Acrobot-v1":
        env.state = np.array([np.arctan2(row[1], row[0]), np.arctan2(row[3], row[2]), row[4], row[5]])
    else:
        env.state = row.copy()
        env.steps_beyond_terminated = None  # of CartPole


def put_mujoco(env: Any, name: str, row: Array) -> None:
    # An observation does not contain the position in the plane, which does not affect the dynamics.
    hidden = {"Ant": 2, "Humanoid": 2, "InvertedPendulum": 0}.get(name.split("-")[0], 1)
    shown = env.model.nq - hidden
    velocities = row[shown : shown + env.model.nv]
    if name.startswith(("Hopper", "Walker")) and np.abs(velocities).max() >= 10:
        return  # observed clipped: both simulators continue from their own state
    env.set_state(np.concatenate([np.zeros(hidden), row[:shown]]), velocities)


def put_dm_control(env: Any, name: str, row: Array) -> None:
    """Solve for the positions of this observation, which contains the velocities in every task."""
    task, physics = env._env.task, env._env.physics
    parts, start = {}, 0
    for key, space in env.observation_space.spaces.items():
        parts[key] = row[start : start + int(np.prod(space.shape))]
        start += len(parts[key])

    def difference(positions: Array) -> Array:
        physics.data.qpos[:], physics.data.qvel[:] = positions, parts["velocity"]
        physics.forward()
        shown = task.get_observation(physics)
        return np.concatenate([np.ravel(shown[key]) - parts[key] for key in parts if key not in NOT_OF_THE_JOINTS])

    for seed in range(30):
        solution = least_squares(difference, physics.data.qpos.copy(), xtol=1e-14, ftol=1e-14, gtol=1e-14)
        if np.abs(solution.fun).max() < 1e-5:
            break
        env.reset(seed=seed)  # a local minimum: try another start
    else:
        raise AssertionError(f"no state of {name} gives EnvPool's observation: {solution.fun}")
    difference(within_limits(physics.model, solution.x))
    if "to_target" in parts:
        physics.named.model.geom_pos["target", :2] = physics.named.data.geom_xpos["finger", :2] + parts["to_target"]
        physics.forward()


def within_limits(model: Any, positions: Array) -> Array:
    """Remove whole turns of hinges, which observations do not contain but joint limits depend on."""
    positions = positions.copy()
    for joint in np.flatnonzero(model.jnt_type == HINGE):
        low, high = model.jnt_range[joint] if model.jnt_limited[joint] else (-np.pi, np.pi)
        place = model.jnt_qposadr[joint]
        positions[place] -= 2 * np.pi * np.round((positions[place] - (low + high) / 2) / (2 * np.pi))
    return positions


def put_for(name: str) -> Callable[[Any, str, Array], None]:
    if name.startswith("dm_control/"):
        return put_dm_control
    return put_mujoco if "mujoco" in str(gymnasium.spec(name).entry_point) else put_classic


@needs("envpool")
@pytest.mark.parametrize("name", [name for name in SUPPORTED if not name.startswith("ALE/")])
def test_the_same_state_and_actions_give_the_same_steps(name: str) -> None:
    pool = make(name, 1, seed=5, backend="envpool")
    env = resolve(name)()
    env.reset(seed=0)
    put, inner = put_for(name), env.unwrapped
    generator = np.random.default_rng(0)
    space = env.action_space
    row = pool.reset()[0].astype(np.float64)
    since = 0  # steps in this episode
    compared = 0
    rewards: list[float] = []
    for _ in range(STEPS):
        if since == 0 or since % RESYNC == 0 or (since < 3 and name.startswith("dm_control/")):
            put(inner, name, row)
            synced = since
        if isinstance(space, spaces.Box):
            action: Any = generator.uniform(space.low, space.high).astype(np.float32)
            stored = action.reshape(1, -1)
            action = action.astype(space.dtype)
        else:
            assert isinstance(space, spaces.Discrete)
            action = int(generator.integers(space.n))
            stored = np.array([[action]], dtype=np.float32)
        step = pool.step(stored)
        row = step.observations[0].astype(np.float64)
        if step.restarting[0]:
            since = 0
            env.reset(seed=0)
            continue
        observation, reward, terminated, _, _ = env.step(action)
        since += 1
        # In dm_control, the orientation of a body is not observable before it moves.
        if name.startswith("dm_control/") and since < 3:
            continue
        compared += 1
        flat = np.asarray(spaces.flatten(env.observation_space, observation), dtype=np.float64)
        np.testing.assert_allclose(row, flat, rtol=2e-3, atol=2e-3, err_msg=f"{name} at {since}")
        assert bool(step.terminated[0]) == terminated
        # MuJoCo's body positions lag behind the joints by part of a step, except right after a reset of the state.
        if since - 1 != synced or synced == 0:
            assert step.rewards[0] == pytest.approx(float(reward), rel=2e-3, abs=2e-3)
            rewards.append(float(reward))
    assert compared > 0.6 * STEPS
    assert len(rewards) > 0.5 * STEPS
    pool.close()
    env.close()
