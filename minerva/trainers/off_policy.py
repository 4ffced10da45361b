"""What trainers that learn from a replay buffer have."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from minerva.callbacks import CallbackLike
from minerva.environments.ids import EnvLike
from minerva.networks.encoders import contains_images
from minerva.storage.replay import ReplayBuffer
from minerva.trainers.actor import Actor
from minerva.trainers.collector import ReplayCollector
from minerva.trainers.config import OffPolicyConfig
from minerva.trainers.health import warn_about_skipped
from minerva.trainers.loop import off_policy_loop
from minerva.trainers.result import TrainingResult
from minerva.trainers.run import Run
from minerva.trainers.trainer import Trainer
from minerva.utils.running_norm import RunningNorm
from minerva.utils.seeding import check_numpy_generator_state, spawn_seed


@dataclass
class UpdateSchedule:
    """The schedule of off-policy updates: when they are due, counted in transitions that can be learned from."""

    start: int  # transitions from which on updates are owed
    counted: int = 0  # transitions that are accounted for
    owed: float = 0.0  # updates for them that are still to be made
    round_at: int = 0  # transitions at the newest round of updates
    round_step: int = 0  # environment steps at that round
    next_log: int = 0  # environment step from which on metrics are logged again
    skipped_seen: int = 0  # skipped updates that were warned about
    dropped_seen: int = 0  # dropped transitions that were warned about

    def owed_at(self, transitions: int, per_transition: float) -> float:
        """Return how many updates are owed after so many transitions, as a number with a fraction."""
        return self.owed + per_transition * max(transitions - max(self.counted, self.start), 0)

    def start_round(self, transitions: int, env_steps: int, owed: float) -> None:
        """Begin a round of updates, after which so many are still owed."""
        self.owed = owed
        self.counted = self.round_at = transitions
        self.round_step = env_steps


class OffPolicyTrainer(Trainer):
    """A trainer that learns from batches of a replay buffer, which it fills; arguments are those of `Trainer`."""

    drops_non_finite: ClassVar[bool] = True
    config: OffPolicyConfig
    replay: ReplayBuffer

    def __init__(
        self,
        env_id: EnvLike,
        seed: int = 42,
        device: str = "auto",
        config: OffPolicyConfig | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(env_id, seed, device, config, **fields)
        self.agent = self._make_agent().eval()
        self.actor = Actor(self.agent.policy, seed, log_probs=True)
        self.replay_order = np.random.default_rng(spawn_seed(seed, "replay_order"))
        self.replay = self._make_replay()
        normalizer = self.agent.obs_normalizer
        with self.close_envs_on_error():
            self.collector = self._make_collector(normalizer if isinstance(normalizer, RunningNorm) else None)
        self.schedule = UpdateSchedule(self.config.update_after)

    def _make_collector(self, normalizer: RunningNorm | None) -> ReplayCollector:
        config = self.config
        if config.rollout_workers is None:
            return ReplayCollector(self.env, self.replay, self.actor, normalizer)
        from minerva.trainers.segment_collectors import SegmentReplayCollector, prepared_workers

        workers = prepared_workers(self, config.segment_steps, log_probs=self.stores_log_probs)
        return SegmentReplayCollector(workers, self.replay, self.actor, normalizer, config.asynchronous)

    def _make_replay(self) -> ReplayBuffer:
        config = self.config
        try:
            return ReplayBuffer(
                config.replay_size,
                config.envs_per_step,
                self.env.observation_dim,
                self.action_dim,
                self.stores_log_probs,
            )
        except MemoryError as error:
            self.close()
            raise ValueError(
                f"replay_size: there is not enough memory for {config.replay_size:,} transitions; choose a smaller one."
            ) from error

    def _check_spaces(self) -> int:
        space = self.env.action_space
        if not isinstance(space, spaces.Box):
            raise ValueError(
                f"env: {self.env_name} has the action space {space}; {self.algorithm} is for a Box (continuous "
                "actions). Choose such an environment, or use ppo or vmpo."
            )
        if contains_images(self.env.raw_observation_space):
            raise ValueError(
                f"env: {self.env_name} has images as observations ({self.env.raw_observation_space}), and "
                f"{self.algorithm} has no image encoder. Use ppo or vmpo, which have one, or turn the images into "
                "vectors (gymnasium.wrappers.FlattenObservation)."
            )
        return super()._check_spaces()

    # What an algorithm provides

    @property
    @abstractmethod
    def stores_log_probs(self) -> bool:
        """Whether the replay buffer stores the log-probabilities of actions."""

    @abstractmethod
    def learn(self, count: int) -> Any:
        """Make so many updates; return what `metrics_of` needs of the newest one, without waiting for a GPU."""

    @abstractmethod
    def metrics_of(self, result: Any) -> dict[str, float]:
        """Return the metrics of an update; nothing where it was skipped."""

    @property
    @abstractmethod
    def skipped_updates(self) -> int:
        """Updates that were skipped because a number was not finite."""

    # The run

    def train(  # type: ignore[override]  # the spec's order of arguments
        self,
        total_steps: int | None = None,
        update_after: int | None = None,
        batch_size: int | None = None,
        out_dir: str | Path | None = None,
        callbacks: CallbackLike = None,
    ) -> TrainingResult:
        """Train until `total_steps` environment steps have been taken, counted from the run's start.

        Args:
            total_steps: Of all environments together; by default those of the run that was loaded, else a million.
            update_after: In place of the config's.
            batch_size: In place of the config's.
            out_dir: The run's folder; by default a new one under ``runs/``, or the one that was loaded from.
            callbacks: A `Callback`, a function of the trainer that is called at every step, or a list of these.

        Raises:
            ValueError: The folder holds another run or is in use by another process, or cannot be written to.
            FolderLostError: It was deleted or taken over in the middle of the run.
        """
        given = {"update_after": update_after, "batch_size": batch_size}
        changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        self.config = dataclasses.replace(self.config, **changed)
        if batch_size is not None:
            self._accelerated = None  # what is compiled or captured takes batches of one size
        if self.updates == 0:
            self.schedule.start = self.config.update_after
        return super().train(total_steps, out_dir=out_dir, callbacks=callbacks)

    def begin(self) -> None:
        self.collector.begin()

    def gradient_steps(self, total_steps: int) -> float:
        return self.config.updates_per_step * total_steps

    @property
    def unit(self) -> str:
        return f"steps of {self.config.envs_per_step:,} environments"

    @property
    def act_before_update(self) -> bool:
        """Whether the next action is chosen before the updates that are due."""
        return self.config.overlap and self.config.rollout_workers is None

    def between_updates(self) -> bool:
        return self.env_steps == self.schedule.round_step

    def run_loop(self, run: Run) -> None:
        self.accelerate(run)
        off_policy_loop(self, run, run.total_steps)

    def updates_due(self) -> int:
        """Return how many updates to make now; asking changes nothing."""
        self._warn_about_dropped()
        waited = self.collector.transitions - self.schedule.round_at
        return int(self._owed()) if waited >= self.config.update_interval else 0

    def _owed(self) -> float:
        return self.schedule.owed_at(self.collector.transitions, self.config.updates_per_step)

    def update(self, count: int) -> dict[str, float]:
        """Make so many updates; return the newest one's metrics if they are to be logged."""
        schedule = self.schedule
        schedule.start_round(self.collector.transitions, self.env_steps, self._owed() - count)
        result = self.learn(count)
        self.actor.invalidate()
        if self.env_steps < schedule.next_log:
            return {}
        schedule.next_log = (self.env_steps // self.config.log_interval + 1) * self.config.log_interval
        skipped = self.skipped_updates
        if skipped > schedule.skipped_seen:
            warn_about_skipped(skipped, schedule.skipped_seen, self.warn)
            schedule.skipped_seen = skipped
        counts = {"health/skipped": float(skipped), "health/dropped": float(self.replay.dropped)}
        metrics = {**self.metrics_of(result), **counts}
        self.check_health(metrics)
        return metrics

    def _warn_about_dropped(self) -> None:
        dropped, seen = self.replay.dropped, self.schedule.dropped_seen
        if dropped == seen:
            return
        if seen < 5 or dropped // 100 > seen // 100:
            self.warn(f"{self.env_name} returned a transition that is not finite; it is dropped ({dropped} so far)")
        self.schedule.dropped_seen = dropped

    # State

    def learning_state(self) -> dict[str, Any]:
        return {
            "replay_order": self.replay_order.bit_generator.state,
            "collector": self.collector.state_dict(),
            "schedule": dataclasses.asdict(self.schedule),
        }

    def state_checks(self, same_device: bool) -> dict[str, Any]:
        own = {"replay_order": check_numpy_generator_state, "collector": self.collector.check_state}
        return {**super().state_checks(same_device), **own}

    def load_learning_state(self, state: dict[str, Any]) -> str | None:
        self.replay_order.bit_generator.state = state["replay_order"]
        self.schedule = UpdateSchedule(**state["schedule"])
        return self.collector.load_state_dict(state["collector"])

    def restart_with_empty_replay(self) -> str:
        self.collector.restart_with_empty_replay()
        self.replay.dropped = self.schedule.dropped_seen
        self.schedule.start = self.collector.transitions + self.config.update_after
        self.schedule.owed = 0.0
        return (
            f"{self.config.update_after:,} transitions are collected before updates resume, so the run is not what it "
            "would have been"
        )
