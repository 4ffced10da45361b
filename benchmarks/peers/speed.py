"""Steps a second, side by side with stable-baselines3 at the same settings, in one interleaved run.

    python -m benchmarks.peers.speed --out benchmarks/results/speed/ppo-halfcheetah.json

Every measurement is a process of its own and takes its turn, so that what else the machine does falls on all alike.
Imports, construction, compilation and evaluation are left out; simulation, acting and updates are in.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

SETTINGS = "HalfCheetah-v5, PPO, rollout 2048 steps, minibatch 64, 10 epochs, two (64, 64) tanh networks, one thread"


def minerva(steps: int, num_envs: int, compiled: bool) -> float:
    """Measure Minerva, with the normalisation of observations and rewards that it has by default.

    A long run compiles its gradient steps. What that takes, once, is left out here: the clock starts after an update.
    """
    import tempfile

    from minerva import PPOTrainer

    trainer = PPOTrainer(
        "HalfCheetah-v5", seed=1, device="cpu", num_envs=num_envs, rollout_steps=2048 // num_envs, target_kl=None,
        eval_episodes=0, console=False, compile=compiled,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        trainer.train(2048, folder)
        begin = time.perf_counter()
        trainer.train(2048 + steps, folder)
        return steps / (time.perf_counter() - begin)


def stable_baselines3(steps: int, num_envs: int, normalise: bool) -> float:
    """Measure stable-baselines3, with its own normalising wrapper or without any normalisation."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecEnv, VecNormalize

    torch.set_num_threads(1)
    env: VecEnv = make_vec_env("HalfCheetah-v5", num_envs, seed=1)
    if normalise:
        env = VecNormalize(env)
    model = PPO("MlpPolicy", env, n_steps=2048 // num_envs, batch_size=64, n_epochs=10, device="cpu", seed=1)
    begin = time.perf_counter()
    model.learn(steps)
    return steps / (time.perf_counter() - begin)


CONTENDERS = {
    "minerva": lambda steps, num_envs: minerva(steps, num_envs, compiled=True),
    "minerva, not compiled": lambda steps, num_envs: minerva(steps, num_envs, compiled=False),
    "stable-baselines3": lambda steps, num_envs: stable_baselines3(steps, num_envs, normalise=False),
    "stable-baselines3 with VecNormalize": lambda steps, num_envs: stable_baselines3(steps, num_envs, normalise=True),
}


def measure(name: str, steps: int, num_envs: int) -> float:
    """Measure one contender in a process of its own."""
    command = [sys.executable, __file__, "--one", name, "--steps", str(steps), "--num-envs", str(num_envs)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return float(answer.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_480)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--num-envs", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", choices=list(CONTENDERS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(CONTENDERS[arguments.one](arguments.steps, arguments.num_envs[0]))
        return
    from benchmarks.provenance import hardware
    from minerva.checkpointing import git_commit, versions

    results = []
    for num_envs in arguments.num_envs:
        samples: dict[str, list[float]] = {name: [] for name in CONTENDERS}
        for _ in range(arguments.repeats):
            for name in CONTENDERS:
                samples[name].append(measure(name, arguments.steps, num_envs))
        medians = {name: median(values) for name, values in samples.items()}
        for name, value in medians.items():
            ratio = f"minerva is {medians['minerva'] / value:.2f} times as fast"
            print(f"{num_envs} environments: {name}: {value:.0f} steps/s ({ratio})", flush=True)
        results.append({"num_envs": num_envs, "steps_per_second": samples, "medians": medians})
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        description = {
            "settings": SETTINGS, "steps": arguments.steps, "results": results, "commit": git_commit(),
            "versions": versions(), "hardware": hardware(),
        }  # fmt: skip
        arguments.out.write_text(json.dumps(description, indent=2) + "\n")


if __name__ == "__main__":
    main()
