"""Runs with rollout workers on a Ray that is started here."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minerva import environments
from minerva.callbacks import Callback
from minerva.checkpointing import CheckpointError
from minerva.environments import EnvironmentFailureError
from minerva.trainers.mpo.trainer import MPOTrainer
from minerva.trainers.ppo.trainer import PPOTrainer
from tests.environments.tiny_envs import Failing
from tests.trainers.fragile import Fragile
from tests.trainers.ppo.small_run import metrics_of, same_run, trained

if os.environ.get("CI") != "true":  # there it must be installed
    pytest.importorskip("ray", reason='Ray is not installed: pip install "minerva-rl[ray]"')

from minerva.utils import ray_cluster

ENVS, WORKERS, STEPS = 4, 2, 16
ROLLOUT = ENVS * STEPS
COMMON: dict[str, Any] = {
    "num_envs": ENVS, "rollout_workers": WORKERS, "policy_layer_sizes": (8,), "critic_layer_sizes": (8,),
    "eval_episodes": 1, "eval_max_steps": 5, "console": False, "compile": False,
}  # fmt: skip
PPO: dict[str, Any] = {
    "rollout_steps": STEPS, "minibatch_size": 32, "update_epochs": 2, "lstm_units": 4, "normalize_reward": True,
}  # fmt: skip
MPO: dict[str, Any] = {
    "segment_steps": STEPS, "update_after": 40, "batch_size": 8, "updates_per_step": 0.25, "use_retrace": True,
    "normalize_obs": True, "log_interval": 20,
}  # fmt: skip
TOTAL = 6 * ROLLOUT
LOST = " was lost (ActorDiedError); another one takes its segment from the beginning."


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[None]:
    ray_cluster.connect(None, local_cores=4)
    yield
    ray_cluster.disconnect()


def ppo(env: Any = "Pendulum-v1", **fields: Any) -> PPOTrainer:
    return PPOTrainer(env, 3, "cpu", **{**COMMON, **PPO, **fields})


def mpo(env: Any = "Pendulum-v1", **fields: Any) -> MPOTrainer:
    return MPOTrainer(env, 3, "cpu", **{**COMMON, **MPO, **fields})


class Trouble(Callback):
    """Kill a worker in the middle of a segment, and stop in the middle of another one.

    Args:
        file: What tells a worker to end.
        notes: Where its loss is said; steps are slow until then, for a learner that does not wait for its workers.
    """

    def __init__(self, file: Path, notes: Path | None = None) -> None:
        self.file, self.notes = file, notes

    def on_step(self, trainer: Any) -> None:
        if trainer.env_steps == ROLLOUT:
            self.file.touch()
        if self.notes is not None and trainer.env_steps > ROLLOUT and LOST not in self.notes.read_text():
            time.sleep(0.1)
        if trainer.env_steps == 4 * ROLLOUT + 5 * ENVS:
            signal.raise_signal(signal.SIGTERM)


class Statistics(Callback):
    """Compare the normalizers with float64 statistics of all that was seen, at the end of each rollout."""

    def __init__(self, first: Any) -> None:
        self.seen, self.rollouts = [np.float64(first)], 0
        self.before: tuple[Any, Any] = (np.zeros(3), np.ones(3))

    def on_step(self, trainer: Any) -> None:
        self.seen.append(np.float64(trainer.last_step.observations))

    def on_rollout_end(self, trainer: Any) -> None:
        raw, (mean, var) = np.stack(self.seen[-STEPS:]), self.before
        normalized = np.clip((raw - mean) / np.sqrt(var + 1e-8), -10, 10)
        np.testing.assert_allclose(trainer.collector.rollout.obs[1:].numpy(), normalized, atol=1e-5)

    def on_rollout_start(self, trainer: Any) -> None:
        if len(self.seen) == 1:
            return
        self.rollouts += 1
        rows, norm, weight = np.concatenate(self.seen), trainer.agent.obs_normalizer, 1e-4
        # It starts as if it had seen a ten-thousandth of a sample of mean 0 and variance 1.
        mean = rows.sum(0) / (len(rows) + weight)
        var = ((rows - mean) ** 2).sum(0) + weight * (1 + mean**2)
        np.testing.assert_allclose(norm.mean.numpy(), mean, rtol=1e-10)
        np.testing.assert_allclose(norm.var.numpy(), var / (len(rows) + weight), rtol=1e-10)
        self.before = mean, var / (len(rows) + weight)


def test_ppo_with_a_lost_worker_and_a_stop_in_a_segment_is_the_undisturbed_run(tmp_path: Path) -> None:
    env = partial(Fragile, tmp_path / "kill", os.getpid())
    alone = environments.make(env, ENVS, 3)
    statistics = Statistics(alone.reset())
    alone.close()
    whole = trained(ppo(env), TOTAL, tmp_path / "whole", statistics)
    assert statistics.rollouts == TOTAL // ROLLOUT - 1
    assert whole.env.description.startswith("4 environments on 2 rollout workers (Ray), each: Gymnasium, 2 env")
    with pytest.raises(SystemExit):
        trained(ppo(env), TOTAL, tmp_path / "run", Trouble(tmp_path / "kill"))
    assert not (tmp_path / "kill").exists()
    assert LOST in (tmp_path / "run" / "notes.log").read_text()
    resumed = ppo(env)
    resumed.load(tmp_path / "run")
    trained(resumed, TOTAL, tmp_path / "run")
    assert same_run(tmp_path / "whole", tmp_path / "run")
    other = ppo(rollout_workers=1)
    with pytest.raises(CheckpointError, match=r"was made with rollout_workers = 2, got 1; give the same\.$"):
        other.load(tmp_path / "run")
    other.close()


def test_mpo_with_a_lost_worker_and_a_stop_in_a_segment_is_the_undisturbed_run(tmp_path: Path) -> None:
    env = partial(Fragile, tmp_path / "kill", os.getpid())
    trained(mpo(env), TOTAL, tmp_path / "whole")
    disturbed_and_resumed(mpo(env), tmp_path)
    assert same_run(tmp_path / "whole", tmp_path / "run")


def disturbed_and_resumed(trainer: MPOTrainer, folder: Path, callbacks: Sequence[Callback] = ()) -> None:
    """Resume with the workers that are there: they must forget what they have done since the checkpoint."""
    notes = folder / "run" / "notes.log" if trainer.config.asynchronous else None
    try:
        with pytest.raises(SystemExit):
            trainer.train(TOTAL, out_dir=folder / "run", callbacks=[Trouble(folder / "kill", notes), *callbacks])
        assert LOST in (folder / "run" / "notes.log").read_text()
        trainer.load(folder / "run")
        trainer.train(TOTAL, callbacks=callbacks)
    finally:
        trainer.close()


class Ratio(Callback):
    def __init__(self) -> None:
        self.most_owed = 0.0

    def on_step(self, trainer: Any) -> None:
        owed = trainer.config.updates_per_step * (trainer.collector.transitions - trainer.config.update_after)
        self.most_owed = max(self.most_owed, owed - trainer.updates)


def test_asynchronous_workers_lose_nothing_and_keep_the_ratio(tmp_path: Path) -> None:
    env, ratio = partial(Fragile, tmp_path / "kill", os.getpid()), Ratio()
    trainer = mpo(env, asynchronous=True)
    disturbed_and_resumed(trainer, tmp_path, [ratio])
    assert trainer.env_steps == TOTAL
    lengths = [value for _, name, value in metrics_of(tmp_path / "run") if name == "train/episode_length"]
    assert set(lengths) == {30.0} and len(lengths) >= ENVS * 2
    restarts = TOTAL - trainer.collector.transitions
    assert ENVS + len(lengths) - ENVS <= restarts <= len(lengths)
    assert trainer.updates == int((trainer.collector.transitions - 40) * 0.25) and ratio.most_owed < 2 * 0.25 + 1


def test_an_environment_that_fails_is_named_with_its_worker(tmp_path: Path) -> None:
    trainer = ppo(partial(Failing, "it broke", 20), num_envs=2, rollout_workers=1)
    with pytest.raises(EnvironmentFailureError, match=r"^rollout worker 0: environment 0 raised"):
        trained(trainer, TOTAL, tmp_path)
