"""Compare the tasks of the MuJoCo backend with Gymnasium's and dm_control's own environments.

    python -m benchmarks.task_agreement --out benchmarks/results/task_agreement.json

For each task: one step from each of `--states` states of a random policy, with the same warm start of the solver, must
give the same observation, reward and termination; starts must have the same distribution (a Kolmogorov-Smirnov test of
each entry of the first observation); and the returns and lengths of `--episodes` episodes of a random policy must agree
within two standard errors.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from scipy.stats import ks_2samp

from benchmarks.provenance import hardware
from minerva import checkpointing
from minerva.environments.ids import quiet_model_compiler, resolve
from minerva.environments.mujoco_backend import make_mujoco_batch
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


def compare_starts(name: str, count: int, seed: int = 0, env_kwargs: Mapping[str, Any] | None = None) -> float:
    """Return the smallest p-value of Kolmogorov-Smirnov tests of first observations, corrected for their number.

    Each entry of the observation is a test. An entry that never changes in either must be the same number in both.
    """
    env, simulator = resolve(name, env_kwargs)(), simulator_of(name, env_kwargs)
    seeds = np.random.default_rng(seed).integers(2**31, size=count).tolist()
    theirs = np.stack([flat(env, env.reset(seed=one)[0]) for one in seeds])
    begun = simulator.begin(np.random.default_rng(seed + 1).spawn(count), np.arange(count))
    ours = flat_batch(env, simulator.task.observation(simulator.state(begun)))
    env.close()
    simulator.close()
    smallest, tests = 1.0, 0
    for mine, original in zip(ours.T, theirs.T, strict=True):
        if max(np.ptp(mine), np.ptp(original)) <= STEP_TOLERANCE:
            if np.abs(mine - original[0]).max() > STEP_TOLERANCE:
                return 0.0
            continue
        tests += 1
        smallest = min(smallest, float(ks_2samp(mine, original, method="asymp").pvalue))
    return min(1.0, smallest * tests)


def compare_episodes(name: str, episodes: int, seed: int = 0) -> dict[str, dict[str, float]]:
    """Compare returns and lengths of a random policy's episodes, in standard errors of their difference."""
    theirs = original_episodes(name, episodes, seed)
    ours = batch_episodes(name, episodes, seed)
    result = {}
    for column, what in enumerate(("return", "length")):
        mine, original = ours[:, column], theirs[:, column]
        error = float(np.hypot(mine.std(ddof=1), original.std(ddof=1)) / episodes**0.5)
        difference = float(mine.mean() - original.mean())
        result[what] = {
            "ours": float(mine.mean()),
            "original": float(original.mean()),
            "standard_errors": difference / error if error else (0.0 if difference == 0 else float("inf")),
        }
    return result


def original_episodes(name: str, episodes: int, seed: int) -> Array:
    """Return the return and length of each episode in the original environment."""
    env, generator = resolve(name)(), np.random.default_rng(seed)
    done = []
    for _ in range(episodes):
        env.reset(seed=int(generator.integers(2**31)))
        total, length, over = 0.0, 0, False
        while not over:
            _, reward, terminated, truncated, _ = env.step(random_action(env, generator))
            total, length, over = total + float(reward), length + 1, terminated or truncated
        done.append((total, length))
    env.close()
    return np.array(done)


def batch_episodes(name: str, episodes: int, seed: int, num_envs: int = 20) -> Array:
    """Return the return and length of each episode in the batched backend: the first ones of each environment."""
    batch, generator = make_mujoco_batch(name, num_envs, seed), np.random.default_rng(seed + 1)
    done: list[list[tuple[float, int]]] = [[] for _ in range(num_envs)]
    batch.reset()
    low, high = batch.action_space.low, batch.action_space.high  # type: ignore[attr-defined]
    while min(map(len, done)) < episodes // num_envs:
        actions = generator.uniform(low, high, (num_envs, low.size)).astype(np.float32)
        for episode in batch.step(actions).episodes:
            done[episode.env_index].append((episode.episode_return, episode.length))
    batch.close()
    return np.array([episode for each in done for episode in each[: episodes // num_envs]])


def main() -> None:
    """Compare the tasks and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file for the table (JSON)")
    parser.add_argument("--tasks", nargs="+", default=built_in(), help="environments")
    parser.add_argument("--states", type=int, default=1000, help="states per task, of which one step is compared")
    parser.add_argument("--starts", type=int, default=300, help="starts per task")
    parser.add_argument("--episodes", type=int, default=100, help="episodes per task; a multiple of 20")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    table: dict[str, Any] = {
        "command": checkpointing.command_line(),
        "commit": checkpointing.git_commit(),
        "versions": checkpointing.versions(),
        "hardware": hardware(),
        "tasks": {},
    }
    for name in options.tasks:
        row: dict[str, Any] = {"one_step": compare_steps(name, options.states, options.seed)}
        row["starts_p"] = compare_starts(name, options.starts, options.seed)
        row["episodes"] = compare_episodes(name, options.episodes, options.seed)
        table["tasks"][name] = row
        options.out.write_text(json.dumps(table, indent=1) + "\n")  # after each task, so that no result is lost
        largest = max(row["one_step"][part] for part in ("observation", "reward", "termination"))
        errors = [round(row["episodes"][what]["standard_errors"], 2) for what in ("return", "length")]
        print(f"{name:32} one step {largest:.1e}  starts p {row['starts_p']:.3f}  episodes {errors}", flush=True)


if __name__ == "__main__":
    main()
