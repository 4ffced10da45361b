"""Compare the tasks of the MuJoCo backend with Gymnasium's and dm_control's own environments.

    python -m benchmarks.task_agreement --out benchmarks/results/task_agreement.json

For each task: one step from each of `--states` states of a random policy, with the same warm start of the solver, must
give the same observation, reward and termination; starts must have the same distribution (a Kolmogorov-Smirnov test of
each entry of the first observation); and the returns and lengths of `--episodes` episodes of a random policy must agree
within two standard errors.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import mujoco
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from minerva.environments.ids import quiet_model_compiler, resolve
from minerva.environments.simulator import FULL_PHYSICS, Simulations, Simulator
from minerva.environments.tasks import built_in, find_task, make_task

Array = NDArray[np.float64]
STEP_TOLERANCE = 1e-9


def simulator_of(name: str, env_kwargs: Mapping[str, Any] | None = None, threads: int = 1) -> Simulator:
    """Return a simulator of a task."""
    with quiet_model_compiler():
        return Simulator(make_task(find_task(name), env_kwargs or {}), threads)


def model_and_data(env: Any) -> tuple[Any, Any]:
    """Return MuJoCo's model and data of an original environment."""
    inner = env.unwrapped
    if hasattr(inner, "_env"):
        physics = inner._env.physics
        return physics.model.ptr, physics.data.ptr
    return inner.model, inner.data


def memory_of(env: Any, size: int) -> Array:
    """Return what the task draws for an episode; in dm_control it is written into the model."""
    if size == 0:
        return np.zeros(0)
    return np.array(env.unwrapped._env.physics.named.model.geom_pos["target"][:size])


def flat(env: Any, observation: Any) -> Array:
    """Return an observation of an original environment, in the order of its space."""
    space = env.observation_space
    if isinstance(space, spaces.Dict):
        return np.concatenate([np.ravel(observation[name]) for name in space.spaces]).astype(np.float64)
    return np.asarray(observation, dtype=np.float64)


def flat_batch(env: Any, observation: Any) -> Array:
    """Return observations of a task, in the order of the original's space."""
    if isinstance(observation, dict):
        parts = [observation[name] for name in env.observation_space.spaces]
        return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)
    return np.asarray(observation)


def simulation_of(env: Any, simulator: Simulator) -> Simulations:
    """Return the simulation that an original environment is at, ``[1, …]`` each."""
    model, data = model_and_data(env)
    now = simulator.empty(1)
    mujoco.mj_getState(model, data, now.physics[0], FULL_PHYSICS)
    now.warm_start[0] = data.qacc_warmstart
    now.memory[0] = memory_of(env, simulator.task.memory_size)
    state = simulator.state(now)
    for field in simulator.task.fields:
        state[field][0] = getattr(data, field)
    return now


def random_action(env: Any, generator: np.random.Generator) -> NDArray[np.float32]:
    """Draw an action, rounded to float32 as actions of a policy are."""
    space = env.action_space
    action: NDArray[np.float32] = generator.uniform(space.low, space.high).astype(np.float32).astype(space.dtype)
    return action


def compare_steps(
    name: str, states: int, seed: int = 0, env_kwargs: Mapping[str, Any] | None = None, longest: int = 60
) -> dict[str, float]:
    """Take one step from the same states and compare.

    Args:
        name: The environment's id.
        states: How many states, each of a step of a random policy drawn from 0 to `longest`.
        seed: Of episodes, states and actions.
        env_kwargs: Arguments of the environment.
        longest: Steps of an episode in which states are taken.

    Returns:
        The largest differences of observations, rewards, terminations, positions and velocities.
    """
    env, simulator = resolve(name, env_kwargs)(), simulator_of(name, env_kwargs)
    generator = np.random.default_rng(seed)
    befores: list[Simulations] = []
    actions, results, afters = [], [], []
    while len(befores) < states:
        env.reset(seed=int(generator.integers(2**31)))
        takes = set(generator.integers(0, longest, 4).tolist()) | {0}
        for step in range(longest):
            action = random_action(env, generator)
            if step in takes:
                befores.append(simulation_of(env, simulator))
            observation, reward, terminated, truncated, _ = env.step(action)
            if step in takes:
                actions.append(action)
                results.append((flat(env, observation), float(reward), terminated))
                afters.append(simulation_of(env, simulator).physics[0])
            if terminated or truncated:
                break
    before = Simulations(*(np.concatenate(parts) for parts in zip(*befores, strict=True)))
    after = simulator.advance(before, np.stack(actions))
    now = simulator.state(after)
    task = simulator.task
    rewards = task.reward(simulator.state(before), np.stack(actions), now)
    ends = task.terminated(now)
    ends = np.zeros(len(befores), dtype=np.bool_) if ends is None else ends
    observations = flat_batch(env, task.observation(now))
    differences = {
        "states": float(len(befores)),
        "observation": float(np.abs(observations - np.stack([result[0] for result in results])).max()),
        "reward": float(np.abs(rewards - np.array([result[1] for result in results])).max()),
        "termination": float((ends != np.array([result[2] for result in results])).sum()),
        "terminated": float(ends.sum()),
        "physics": float(np.abs(after.physics[:, 1:] - np.stack(afters)[:, 1:]).max()),
    }
    env.close()
    simulator.close()
    return differences


if __name__ == "__main__":
    for name in sys.argv[1:] or built_in():
        begin = time.perf_counter()
        print(name, compare_steps(name, 100), round(time.perf_counter() - begin, 2))
