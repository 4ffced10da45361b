"""Measure whether PPO2 learns as stable-baselines' own tests ask: above 150 after 100,000 steps.

    python -m benchmarks.old_scripts.learning --seeds 1 2 3 4 5 --jobs 2

CartPole-v1 with PPO2's defaults and MlpPolicy, and CartPole without velocities with MlpLstmPolicy and the settings of
stable-baselines' test of recurrent policies: 16 environments, VecNormalize, 10 passes over 16 minibatches. Each task
gets, in ``OUT/ppo2/<task>``, a learning curve per seed and one row per seed in ``runs.csv``, as `benchmarks/learn.py`
writes them: the mean return of 20 deterministic episodes with the last weights. `training_return_mean` is what the
tests look at: the mean over the last ten calls of the callback of the mean of the last 100 training episodes.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learn import VERSIONS
from benchmarks.provenance import commit_of, hardware

ROOT = Path(__file__).parents[2]
STEPS = 100_000
BETWEEN_EVALUATIONS = 20_000
EPISODES = 20
REQUIRED = 150.0
LAST_CALLS = 10


def _without_velocity(seed: int) -> Any:
    """Return the environment of stable-baselines' test: CartPole that shows positions only, 500 steps at most."""
    from minerva.compat import gym
    from minerva.compat.gym.envs.classic_control import CartPoleEnv
    from minerva.compat.gym.wrappers import TimeLimit
    from minerva.compat.stable_baselines.bench import Monitor

    class Positions(gym.ObservationWrapper):
        def __init__(self, env: Any) -> None:
            super().__init__(env)
            high = np.array([env.x_threshold * 2, env.theta_threshold_radians * 2], dtype=np.float32)
            self.observation_space = gym.spaces.Box(-high, high, dtype=np.float32)

        def observation(self, observation: Any) -> Any:
            return observation[[0, 2]]

    env = Monitor(TimeLimit(Positions(CartPoleEnv()), max_episode_steps=500), None, allow_early_resets=True)
    env.seed(seed)
    return env


def _cartpole(seed: int) -> tuple[Any, Any]:
    """Return an untrained model with PPO2's defaults, and the environment of its evaluations."""
    from minerva.compat.stable_baselines import PPO2
    from minerva.compat.stable_baselines.common.cmd_util import make_vec_env

    env = make_vec_env("CartPole-v1", n_envs=1, seed=seed)
    return PPO2("MlpPolicy", env, seed=seed), make_vec_env("CartPole-v1", n_envs=1, seed=1000 + seed)


def _cartpole_without_velocity(seed: int) -> tuple[Any, Any]:
    """Return an untrained recurrent model, and the environment of its evaluations."""
    from minerva.compat.stable_baselines import PPO2
    from minerva.compat.stable_baselines.common.policies import MlpLstmPolicy
    from minerva.compat.stable_baselines.common.vec_env import DummyVecEnv, VecNormalize

    def make(seed: int) -> Callable[[], Any]:
        return lambda: _without_velocity(seed)

    env = VecNormalize(DummyVecEnv([make(16 * seed + k) for k in range(16)]))
    eval_env = VecNormalize(DummyVecEnv([make(1000 + seed)]), training=False, norm_reward=False)
    model = PPO2(
        MlpLstmPolicy,
        env,
        n_steps=128,
        nminibatches=16,
        lam=0.95,
        gamma=0.99,
        noptepochs=10,
        ent_coef=0.0,
        learning_rate=3e-4,
        cliprange=0.2,
        seed=seed,
    )
    return model, eval_env


TASKS = {"CartPole-v1": _cartpole, "CartPoleNoVelEnv": _cartpole_without_velocity}


def train(task: str, seed: int, steps: int) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """Train one seed; return its row without provenance, and its curve."""
    import torch

    from minerva.compat.stable_baselines.common.callbacks import BaseCallback
    from minerva.compat.stable_baselines.common.evaluation import evaluate_policy
    from minerva.compat.stable_baselines.common.vec_env import sync_envs_normalization

    torch.set_num_threads(1)
    model, eval_env = TASKS[task](seed)
    curve: list[dict[str, float]] = []
    training: list[float] = []

    def evaluate() -> None:
        sync_envs_normalization(model.get_env(), eval_env)
        returns, lengths = evaluate_policy(model, eval_env, n_eval_episodes=EPISODES, return_episode_rewards=True)
        values = np.asarray(returns, np.float64).ravel()
        statistics = {name: float(getattr(np, name)(values)) for name in ("mean", "std", "min", "max", "median")}
        curve.append(
            {"step": model.num_timesteps}
            | {f"return_{name}": value for name, value in statistics.items()}
            | {"length_mean": float(np.mean(lengths))}
        )

    class Watch(BaseCallback):
        seconds = 0.0

        def _on_step(self) -> bool:
            if model.ep_info_buf:
                training.append(float(np.mean([episode["r"] for episode in model.ep_info_buf])))
                del training[:-LAST_CALLS]
            if self.num_timesteps // BETWEEN_EVALUATIONS >= len(curve):
                begin = time.perf_counter()
                evaluate()
                self.seconds += time.perf_counter() - begin
            return True

    evaluate()
    watch = Watch()
    begin = time.perf_counter()
    model.learn(steps, callback=watch)
    seconds = time.perf_counter() - begin - watch.seconds
    if curve[-1]["step"] != model.num_timesteps:
        evaluate()
    last = {("steps" if name == "step" else name): value for name, value in curve[-1].items()}
    row = last | {"training_return_mean": float(np.mean(training)), "sps": round(model.num_timesteps / seconds)}
    return row, curve


def _job(job: tuple[str, int, int]) -> tuple[dict[str, Any], list[dict[str, float]]]:
    os.chdir(tempfile.gettempdir())
    return train(*job)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    arguments = parser.parse_args()
    from minerva.checkpointing import versions

    found = versions()
    provenance = {
        "commit": commit_of(ROOT),
        "hardware": f"{hardware()}, one core per run",
        "versions": " ".join(f"{name}={found[name]}" for name in VERSIONS if name in found),
    }
    out = arguments.out.resolve()
    jobs = [(task, seed, arguments.steps) for task in arguments.tasks for seed in arguments.seeds]
    rows: dict[str, list[dict[str, Any]]] = {}
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
        for (task, seed, steps), (row, curve) in zip(jobs, pool.map(_job, jobs), strict=True):
            command = f"python -m benchmarks.old_scripts.learning --tasks {task} --seeds {seed} --steps {steps}"
            about = {"algorithm": "ppo2", "env": task, "seed": seed, "command": command, **provenance}
            rows.setdefault(task, []).append(about | row)
            folder = out / "ppo2" / task
            folder.mkdir(parents=True, exist_ok=True)
            _write(folder / f"seed{seed}.csv", curve)
            _write(folder / "runs.csv", rows[task])
            print(
                f"{task} seed {seed}: {row['return_mean']:.1f} at {row['steps']:,} steps, "
                f"{row['training_return_mean']:.1f} in training, {row['sps']} steps/s",
                flush=True,
            )
    return int(any(row["return_mean"] < REQUIRED for of_task in rows.values() for row in of_task))


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    raise SystemExit(main())
