"""Measure the time of an MPO and a V-MPO update on a CPU or a GPU; on a GPU also whole training of PPO and MPO.

    python -m benchmarks.updates --device cuda --out benchmarks/results/speed/h200.json
    python -m benchmarks.updates --device cpu --out benchmarks/results/speed/updates-cpu.json

Every variant is warmed up; then the variants take turns, so that other load on the machine affects all of them equally.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

SIZES: dict[str, dict[str, Any]] = {
    "small": {"policy_layer_sizes": (256, 256), "critic_layer_sizes": (256, 256)},
    "large": {"policy_layer_sizes": (256, 256, 256), "critic_layer_sizes": (512, 512, 256)},
}
BATCH, SAMPLES = 256, 20


def mpo_update(
    device: str, size: str, compiled: bool, captured: bool = False, in_pieces: bool = True, **fields: Any
) -> Callable[[], Any]:
    """Prepare an MPO update for HalfCheetah-v5 on a random batch."""
    import torch

    from minerva import MPOTrainer
    from minerva.acceleration.applied import Acceleration
    from minerva.trainers.mpo.update import Batch

    trainer = MPOTrainer(
        "HalfCheetah-v5", 1, device, console=False, action_samples=SAMPLES, batch_size=BATCH, replay_size=1000,
        **SIZES[size], **fields,
    )  # fmt: skip
    agent = trainer.agent
    agent.set_acceleration(Acceleration(compiled, captured))
    if not in_pieces:
        agent.q.widest_layer = 1  # as if all rows fitted into the cache at once
    torch.manual_seed(0)
    obs_dim, act_dim = trainer.env.observation_dim, trainer.action_dim
    shapes = ((obs_dim,), (act_dim,), (), (), (obs_dim,))
    batch = Batch(*(torch.rand(BATCH, *shape, device=device) for shape in shapes))
    return lambda: agent.step(batch, agent.draw_noise(batch))


def vmpo_update(device: str, compiled: bool, captured: bool) -> Callable[[], Any]:
    """Prepare a V-MPO update on a rollout of 4096 samples, with 16 M-steps and two (256, 256) networks."""
    import torch

    from minerva import VMPOTrainer
    from minerva.acceleration.applied import Acceleration

    trainer = VMPOTrainer(
        "HalfCheetah-v5", 1, device, console=False, num_envs=64, rollout_steps=64, m_steps=16,
    )  # fmt: skip
    trainer.set_acceleration(Acceleration(compiled, captured))
    rollout = trainer.collector.rollout
    torch.manual_seed(0)
    rollout.obs.normal_()
    rollout.actions.uniform_(-0.9, 0.9)
    rollout.rewards.normal_()
    return lambda: trainer.update(10)


def milliseconds(variants: dict[str, Callable[[], Any]], device: str, repeats: int) -> dict[str, float]:
    """Time variants in turn; returns the median of each in milliseconds."""
    import torch

    def run(call: Callable[[], Any]) -> float:
        begin = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - begin)

    for call in variants.values():
        for _ in range(5):
            run(call)
    samples: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name, call in variants.items():
            samples[name].append(run(call))
    return {name: round(median(values), 3) for name, values in samples.items()}


def ppo_steps_per_second(device: str, num_envs: int, rollout_steps: int, minibatch: int, updates: int) -> list[float]:
    """Measure whole training of PPO on HalfCheetah-v5 with EnvPool: steps per second of three segments of updates."""
    from minerva import PPOTrainer

    size = num_envs * rollout_steps
    trainer = PPOTrainer(
        "HalfCheetah-v5", 1, device, backend="envpool", num_envs=num_envs, rollout_steps=rollout_steps,
        minibatch_size=minibatch, update_epochs=10, target_kl=None, eval_episodes=0, console=False,
    )  # fmt: skip
    found = []
    with tempfile.TemporaryDirectory() as folder:
        trainer.train(3 * size, folder)
        for k in range(3):
            begin = time.perf_counter()
            trainer.train((3 + updates * (k + 1)) * size)
            found.append(updates * size / (time.perf_counter() - begin))
    trainer.close()
    return found


def mpo_steps_per_second(device: str, steps: int, repeats: int) -> dict[str, list[float]]:
    """Measure whole training of MPO on one HalfCheetah-v5, without and with overlapped updates, in turn."""
    from minerva import MPOTrainer

    found: dict[str, list[float]] = {"one after the other": [], "overlap": []}
    with tempfile.TemporaryDirectory() as folder:
        trainers = {
            name: MPOTrainer(
                "HalfCheetah-v5", 1, device, overlap=name == "overlap", compile=True, eval_episodes=0, console=False,
                **SIZES["small"],
            )
            for name in found
        }  # fmt: skip
        for name, trainer in trainers.items():
            trainer.train(2_000, out_dir=Path(folder) / name.replace(" ", "-"))
        for k in range(repeats):
            for name, trainer in trainers.items():
                begin = time.perf_counter()
                trainer.train(2_000 + steps * (k + 1))
                found[name].append(round(steps / (time.perf_counter() - begin)))
    for trainer in trainers.values():
        trainer.close()
    return found


def pool_steps_per_second(num_envs: int, steps: int) -> float:
    """Measure the steps per second of EnvPool alone, with fixed actions."""
    import numpy as np

    from minerva.environments import make

    env = make("HalfCheetah-v5", num_envs, seed=1, backend="envpool")
    env.reset()
    actions = np.zeros((num_envs, 6), dtype=np.float32)
    for _ in range(20):
        env.step(actions)
    begin = time.perf_counter()
    for _ in range(steps // num_envs):
        env.step(actions)
    return steps / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--commit", default=None, help="commit of the code, if git is not available")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    from benchmarks.provenance import gpu, hardware
    from minerva.checkpointing import git_commit, versions

    device, repeats = arguments.device, arguments.repeats
    on_gpu = device == "cuda"
    forms = {"eager": (False, False), "compiled": (True, False)}
    if on_gpu:
        forms = {"eager": (False, False), "captured": (False, True), "compiled and captured": (True, True)}
    found: dict[str, Any] = {}
    for size in SIZES:
        found[f"MPO update, {size} networks, ms"] = milliseconds(
            {name: mpo_update(device, size, *form) for name, form in forms.items()}, device, repeats
        )
    found["V-MPO update, 4096 samples, 16 M-steps, ms"] = milliseconds(
        {name: vmpo_update(device, *form) for name, form in forms.items()}, device, max(3, repeats // 5)
    )
    if on_gpu:
        found["EnvPool alone, 256 environments, steps/s"] = round(pool_steps_per_second(256, 200_000))
        found["MPO, one environment, small networks, an update a step, steps/s"] = mpo_steps_per_second(
            device, 5_000, 5
        )
        rates = ppo_steps_per_second(device, 256, 32, 2048, updates=15)
        found["PPO, 256 environments, rollout 32, minibatch 2048, 10 epochs, steps/s"] = [round(rate) for rate in rates]
    description = {
        "batch": BATCH, "action_samples": SAMPLES, "results": found, "commit": arguments.commit or git_commit(),
        "versions": versions(), "hardware": hardware() + (f", {gpu()}" if on_gpu else ""),
        "threads": os.environ.get("OMP_NUM_THREADS", "torch's default"),
    }  # fmt: skip
    print(json.dumps(description, indent=2))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(description, indent=2) + "\n")


if __name__ == "__main__":
    main()
