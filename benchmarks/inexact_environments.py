"""Stop and resume runs on environments that cannot be brought back, and look for transitions that join two episodes.

    python -m benchmarks.inexact_environments --out benchmarks/results/inexact_environments.json

Three environments (one is not deterministic, one ends at random and raises when it is stepped after its end, one never
ends), PPO, V-MPO and MPO with n-step targets and with Retrace, in process and in workers, 20 stops each. Every
observation carries the number of its episode and of its step, so every row of every rollout that is learned from, and
every transition and window of the replay buffer after every step, is checked. The actions that are kept, and the files
of the checkpoint, must not grow.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from benchmarks.provenance import commit_of, hardware
from minerva import api
from minerva.callbacks import Callback
from minerva.checkpointing import command_line, versions
from minerva.environments import history
from minerva.storage.replay import ReplayBuffer
from minerva.storage.rollout import RolloutBuffer
from minerva.trainers.on_policy import OnPolicyTrainer

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # worker processes need not import torch for it

KINDS = ("not deterministic", "raises after its end", "never ends")
MPO = {"replay_size": 300, "update_after": 20, "batch_size": 8, "action_samples": 2, "updates_per_step": 0.1}
FIELDS: dict[str, dict[str, Any]] = {
    "ppo": {"rollout_steps": 32, "minibatch_size": 32, "update_epochs": 1, "normalize_obs": False},
    "vmpo": {"rollout_steps": 32, "normalize_obs": False, "value_layer_sizes": (8,)},
    "mpo": {**MPO, "n_step": 3},
    "mpo, retrace": {**MPO, "use_retrace": True},
}
WINDOW = 3
"""Length of the windows of the replay buffer that are checked."""
LIMIT = 100
"""Actions that are kept of an episode here, so that an endless one is too long soon."""

Observation = NDArray[np.float32]


class Marked(gymnasium.Env[Observation, NDArray[np.float32]]):
    """Observe the number of the episode, drawn at its start, and of the step.

    Args:
        kind: What cannot be brought back.
        session: Another one after each stop: what chance decides differs from session to session, and only so.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, kind: str, session: int) -> None:
        self.kind = kind
        self.session = session
        self.chance = np.random.default_rng(session)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, Any]:
        """Start an episode, of the number that its seed gives unless the environment is not deterministic."""
        super().reset(seed=seed)
        if seed is not None:
            self.chance = np.random.default_rng([self.session, seed])
        numbers = self.chance if self.kind == "not deterministic" else self.np_random
        self.episode, self.steps, self.ended = int(numbers.integers(2**24)), 0, False  # exact in float32
        lengths = self.chance if self.kind == "raises after its end" else self.np_random
        self.length = None if self.kind == "never ends" else int(lengths.integers(5, 60))
        return self._observe(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Count the step; raise after the end."""
        if self.ended:
            raise RuntimeError("stepped after its end")
        self.steps += 1
        self.ended = self.steps == self.length
        return self._observe(), float(action[0]), self.ended, False, {}

    def _observe(self) -> Observation:
        return np.array([self.episode, self.steps], dtype=np.float32)


class CheckRows(Callback):
    """Check every rollout before it is learned from, and the replay buffer at every step."""

    def __init__(self, stop_after: int) -> None:
        self.stop_after = stop_after
        self.rows = 0
        self.joined = 0

    def on_training_start(self, trainer: Any) -> None:
        """Note where this session begins."""
        self.begin = trainer.env_steps

    def on_rollout_end(self, trainer: Any) -> None:
        """Check what is about to be learned from."""
        if trainer.replay is None:
            self._count(*joined_in_rollout(trainer.collector.rollout))

    def on_step(self, trainer: Any) -> bool:
        """Check the replay buffer, and stop the session after its share of steps."""
        if trainer.replay is not None:
            self._count(*joined_in_replay(trainer.replay))
        return bool(trainer.env_steps - self.begin < self.stop_after)

    def _count(self, rows: int, joined: int) -> None:
        self.rows += rows
        self.joined += joined


def joined_in_rollout(rollout: RolloutBuffer) -> tuple[int, int]:
    """Return how many real transitions a rollout holds, and how many of them join two episodes."""
    t = rollout.position
    here, there = rollout.obs[:t], rollout.obs[1 : t + 1]
    real = rollout.restarting[:t] == 0
    follows = (there[..., 0] == here[..., 0]) & (there[..., 1] == here[..., 1] + 1)
    joined = real & ~follows
    # The recursion of advantages must be cut before a restarting step too.
    ended = (rollout.terminated[:t] + rollout.truncated[:t]) > 0
    joined[:-1] |= ~real[1:] & ~ended[:-1]
    return int(real.sum()), int(joined.sum())


def joined_in_replay(replay: ReplayBuffer) -> tuple[int, int]:
    """Return how many transitions a replay buffer can sample, and how many windows of three join two episodes."""
    if len(replay) == 0:
        return 0, 0
    every: Any = EveryPlace()
    sample = replay.sample(len(replay), every, n_step=WINDOW)
    steps = sample.next_obs[:, 1] - sample.obs[:, 1]
    joined = (sample.next_obs[:, 0] != sample.obs[:, 0]) | (steps < 1) | (steps > WINDOW)
    if replay.log_probs is not None:
        windows = replay.sample_windows(len(replay), WINDOW, every)
        number, step = windows.obs[..., 0], windows.obs[..., 1]
        other = (windows.next_obs[..., 0] != number) | (windows.next_obs[..., 1] != step + 1)
        moved = np.diff(step, axis=1)  # 1 within an episode, 0 where the last real step is repeated
        joined |= other.any(1) | (np.diff(number, axis=1) != 0).any(1) | ((moved != 0) & (moved != 1)).any(1)
        joined |= ((moved == 0) & (windows.ended[:, :-1] == 0)).any(1)
    return len(replay), int(joined.sum())


class EveryPlace:
    """In place of a generator: draws every place of the replay buffer once."""

    def integers(self, high: int, size: int) -> NDArray[np.int64]:
        """Return every place."""
        assert size == high
        return np.arange(high)


@contextmanager
def short_histories() -> Iterator[None]:
    """Keep few actions of an episode."""
    kept = history.MIN_LIMIT, history.TOTAL_BYTES, history.BLOCK_BYTES
    history.MIN_LIMIT, history.TOTAL_BYTES, history.BLOCK_BYTES = LIMIT, 0, 0
    try:
        yield
    finally:
        history.MIN_LIMIT, history.TOTAL_BYTES, history.BLOCK_BYTES = kept


def stop_and_resume(
    kind: str, algo: str, stops: int, steps: int, folder: Path, num_envs: int = 3, vectorization: str = "sync"
) -> dict[str, Any]:
    """Run, stop and resume in new trainers; return what the rows showed, and how large state and checkpoints were."""
    name = algo.split(",")[0]
    fields = {
        "num_envs": num_envs, "policy_layer_sizes": (8,), "eval_episodes": 0, "console": False, "compile": False,
        "vectorization": vectorization, "num_workers": 2, **FIELDS[algo],
    }  # fmt: skip
    config = api.config_class(name).from_fields(None, fields)
    rows = joined = fresh = 0
    saved, kept = [], []
    with short_histories(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about episodes that start again
        for session in range(stops + 1):
            trainer = api.make_trainer(name, partial(Marked, kind, session), 1, "cpu", config)
            if session > 0:
                trainer.load(folder)
                fresh += int(trainer.env.restarts_next.sum())
            check = CheckRows(steps)
            trainer.train(10**6, out_dir=folder, callbacks=check)
            if isinstance(trainer, OnPolicyTrainer):  # the part of a rollout that is not learned from yet
                joined += joined_in_rollout(trainer.collector.rollout)[1]
            rows, joined = rows + check.rows, joined + check.joined
            kept.append(len(trainer.env.state_dict()["actions"]))
            trainer.close()
            saved.append(sum(file.stat().st_size for file in folder.glob(f"{name}_last.*/*")))
            saved[-1] += (folder / f"{name}_last.pt").stat().st_size
    half = len(saved) // 2
    return {
        "environment": kind, "algorithm": algo, "vectorization": vectorization, "stops": stops, "rows": rows,
        "joined": joined, "fresh": fresh, "most_actions_kept": max(kept), "checkpoint_bytes": max(saved[half:]),
        "checkpoint_bytes_in_the_first_half": max(saved[:half]),
    }  # fmt: skip


def is_bounded(result: dict[str, Any], num_envs: int = 3) -> bool:
    """Return whether neither the kept actions nor the checkpoint grew without bound."""
    # An episode is dropped when a block of at least 16 steps is cut: it may be longer than the limit by one block.
    actions = num_envs * (LIMIT + 2 * 16)
    grown = result["checkpoint_bytes"] / result["checkpoint_bytes_in_the_first_half"]
    return bool(result["most_actions_kept"] <= actions and grown < 1.25)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--stops", type=int, default=20)
    parser.add_argument("--steps", type=int, default=330, help="environment steps between two stops")
    options = parser.parse_args()
    about = {
        "command": command_line(), "commit": commit_of(Path(__file__).parents[1]), "versions": versions(),
        "hardware": hardware(),
    }  # fmt: skip
    results = []
    for kind, algo, where in itertools.product(KINDS, FIELDS, ("sync", "subprocess")):
        with tempfile.TemporaryDirectory() as folder:
            result = stop_and_resume(kind, algo, options.stops, options.steps, Path(folder), vectorization=where)
        results.append({**result, "bounded": is_bounded(result)})
        print(results[-1], flush=True)
    counts = {name: sum(result[name] for result in results) for name in ("stops", "rows", "joined", "fresh")}
    if options.out is not None:
        options.out.write_text(json.dumps({**about, "total": counts, "results": results}, indent=1) + "\n")
    if counts["joined"] or not all(result["bounded"] for result in results):
        raise SystemExit("transitions join two episodes, or something grows without bound")


if __name__ == "__main__":
    main()
