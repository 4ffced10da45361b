"""MPO, assembled: environments, agent, replay, loop."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minerva.callbacks import CallbackLike
from minerva.environments.base import box_bounds
from minerva.environments.ids import EnvFactory
from minerva.storage.replay import ReplayBuffer
from minerva.trainers.accelerate import compiler_available
from minerva.trainers.collector import ReplayCollector
from minerva.trainers.health import MPO_RULES, Health, warn_of_skipped
from minerva.trainers.loop import off_policy_loop
from minerva.trainers.mpo.agent import Actor, MPOAgent
from minerva.trainers.mpo.config import MPOConfig
from minerva.trainers.mpo.update import Batch, Metrics, SequenceBatch, make_step, named_metrics
from minerva.trainers.run import Run, TrainingResult
from minerva.trainers.trainer import ROWS_A_THREAD, Trainer
from minerva.utils.running_norm import RunningNorm
from minerva.utils.seeding import (
    initialization_seed,
    numpy_generator_state,
    set_numpy_generator_state,
    spawn_seed,
    torch_generator,
)

__all__ = ["MPOAgent", "MPOConfig", "MPOTrainer"]

COMPILED_FROM = {"cpu": 20_000, "cuda": 100_000}
"""Updates of a run from which on compiling them saves more time than it takes."""

Acceleration = Literal["none", "compiled", "captured", "compiled and captured"]


class MPOTrainer(Trainer):
    """Trains a policy with MPO.

    Args:
        env_id: A Gymnasium id, ``dm_control/<domain>/<task>``, or a callable that returns a `gymnasium.Env`.
        seed: Environment i is seeded from ``seed + i``; every other generator is spawned from it.
        device: "auto", "cpu", "cuda", …
        config: An `MPOConfig`; by default its defaults.
        **fields: Fields of `MPOConfig`, on top of `config`.
    """

    algorithm: ClassVar[str] = "mpo"
    fixed_fields: ClassVar[tuple[str, ...]] = ("policy_layer_sizes", "critic_layer_sizes", "normalize_obs")
    resumed_fields: ClassVar[tuple[str, ...]] = ("num_envs", "replay_size", "use_retrace", "optimizer_type")
    drops_non_finite: ClassVar[bool] = True
    config: MPOConfig
    agent: MPOAgent
    memory: ReplayBuffer

    def __init__(
        self,
        env_id: str | EnvFactory,
        seed: int = 42,
        device: str = "auto",
        config: MPOConfig | None = None,
        **fields: Any,
    ) -> None:
        config = MPOConfig.from_fields(config, fields)
        super().__init__(env_id, seed, device, config)
        self.update_noise = torch_generator(seed, "update_noise", self.device)
        with initialization_seed(seed):
            self.agent = MPOAgent(
                self.env.observation_dim,
                self.action_dim,
                *box_bounds(self.env.action_space),
                self.device,
                config=config,
                generator=self.update_noise,
            )
        self.action_noise = torch_generator(seed, "action_noise")
        self.replay_order = np.random.default_rng(spawn_seed(seed, "replay_order"))
        self.actor = Actor(self.agent, self.action_noise)
        self.memory = self._make_replay()
        normalizer = self.agent.obs_normalizer
        self.collector = ReplayCollector(
            self.env,
            self.memory,
            self.actor,
            normalizer if isinstance(normalizer, RunningNorm) else None,
        )
        self.health = Health(MPO_RULES)
        self.acceleration: Acceleration | None = None  # decided when the run's length is known, and kept to its end
        self._step: Callable[..., tuple[Tensor, Metrics]] | None = None
        # The schedule of updates
        self.update_from = config.update_after  # transitions from which on updates are owed
        self.counted = 0  # transitions that are accounted for
        self.owed = 0.0  # updates for them that are still to be made
        self.round_at = 0  # transitions at the newest round of updates
        self.round_step = 0  # and environment steps
        self.next_log = 0
        # What was warned of
        self.skipped_seen = 0
        self.dropped_seen = 0

    def _make_replay(self) -> ReplayBuffer:
        config = self.config
        try:
            return ReplayBuffer(
                config.replay_size, config.num_envs, self.env.observation_dim, self.action_dim, config.use_retrace
            )
        except MemoryError as error:
            self.close()
            raise ValueError(
                f"replay_size: there is not enough memory for {config.replay_size:,} transitions; choose a smaller one."
            ) from error

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
            ValueError: The folder holds another run, or cannot be written to.
        """
        given = {"update_after": update_after, "batch_size": batch_size}
        changed = {name: value for name, value in given.items() if value is not None}
        self.config = dataclasses.replace(self.config, **changed)  # type: ignore[arg-type]
        if self.updates == 0:
            self.update_from = self.config.update_after
        if batch_size is not None:
            self._step = None  # a graph is of one batch size
        return super().train(total_steps, out_dir=out_dir, callbacks=callbacks)

    def useful_threads(self) -> int:
        """Give the number of torch's threads that its gradient steps are fastest with on a CPU of many cores."""
        return self.config.batch_size * self.config.action_samples // ROWS_A_THREAD

    def begin(self) -> None:
        """Start the first episodes."""
        self.actor.refresh()  # the policy may be another run's
        self.collector.begin()

    def too_short(self, total_steps: int) -> str | None:
        """Say why a run of so many steps has no update to make."""
        if total_steps > self.config.update_after:
            return None
        return (
            f"total_steps = {total_steps} is not more than update_after = {self.config.update_after}: "
            "there is no update to make, so nothing was trained."
        )

    def final_step(self, total_steps: int) -> int:
        """Give the environment step at which a run of so many steps ends: whole steps of all environments."""
        return -(-total_steps // self.config.num_envs) * self.config.num_envs

    @property
    def acts_first(self) -> bool:
        """Whether the next action is chosen before the updates that are due."""
        return self.config.overlap

    def between_updates(self) -> bool:
        """Whether no step has been taken since the newest round of updates."""
        return self.env_steps == self.round_step

    def run_loop(self, run: Run) -> None:
        """Train until the run ends."""
        if self.acceleration is None:
            self.acceleration = self._choose_acceleration(run.total_steps)
        if self.config.compile is not False and not compiler_available():
            run.say("No C++ compiler is installed (Debian: g++), so updates are not compiled.")
        if "compiled" in self.acceleration and not compiler_available():
            self.acceleration = "captured" if "captured" in self.acceleration else "none"
        if "compiled" in self.acceleration:
            run.say("Updates are compiled, which takes a while before the first of them.")
        off_policy_loop(self, run, run.total_steps)

    def _choose_acceleration(self, total_steps: int) -> Acceleration:
        config, kind = self.config, self.device.type
        long = config.updates_per_step * total_steps >= COMPILED_FROM.get(kind, np.inf)
        compiled = (long if config.compile == "auto" else config.compile) and compiler_available()
        if kind != "cuda" or config.compile is False:
            return "compiled" if compiled else "none"
        return "compiled and captured" if compiled else "captured"

    # Learning

    def updates_due(self) -> int:
        """Give how many updates are to be made now; asking changes nothing."""
        self._warn_of_dropped()
        waited = self.collector.transitions - self.round_at
        return int(self._updates_owed()) if waited >= self.config.update_interval else 0

    def _updates_owed(self) -> float:
        new = self.collector.transitions - max(self.counted, self.update_from)
        return self.owed + self.config.updates_per_step * max(new, 0)

    def update(self, count: int, run: Run) -> dict[str, float]:
        """Make so many updates; returns the newest one's metrics where a line of the log is due."""
        self.owed = self._updates_owed() - count
        self.counted = self.round_at = self.collector.transitions
        self.round_step = self.env_steps
        if self._step is None:
            self._step = self._make_step()
        for batch in self._sample(count):
            finite, metrics = self._step(*batch, *self.agent.draw_noise(batch))
        self.actor.refresh()
        if self.env_steps < self.next_log:
            return {}
        self.next_log = (self.env_steps // self.config.log_interval + 1) * self.config.log_interval
        skipped = int(self.agent.skipped)
        if skipped > self.skipped_seen:
            warn_of_skipped(skipped, self.skipped_seen)
            self.skipped_seen = skipped
        counts = {"health/skipped": float(skipped), "health/dropped": float(self.collector.replay.dropped)}
        named = {**named_metrics(metrics, self.config), **counts} if finite else counts
        for warning in self.health.check(named):
            run.warn(warning)
        return named

    def _make_step(self) -> Callable[..., tuple[Tensor, Metrics]]:
        agent, way = self.agent, self.acceleration or "none"
        kind = SequenceBatch if self.config.sequences else Batch
        return make_step(agent.compute, agent.learned, agent.skipped, kind, "compiled" in way, "captured" in way)

    def _sample(self, count: int) -> list[Batch] | list[SequenceBatch]:
        """Draw the batches of a round of updates."""
        config, replay = self.config, self.collector.replay
        rows = count * config.batch_size

        def split(array: NDArray[np.float32], obs: bool = False) -> Tensor:
            tensor = torch.from_numpy(array)
            tensor = self.agent.prepared(tensor) if obs else tensor.to(self.device)
            return tensor.view(count, config.batch_size, *tensor.shape[1:])

        # Actions are raw here; the critic clips them.
        if config.sequences:
            w = replay.sample_windows(rows, config.retrace_steps, self.replay_order)
            actions = split(w.actions)
            parts = (
                split(w.obs, obs=True), actions, actions, *map(split, (w.log_probs, w.rewards, w.terminated, w.ended)),
                split(w.next_obs, obs=True),
            )  # fmt: skip
            return [SequenceBatch(*(part[k] for part in parts)) for k in range(count)]
        t = replay.sample(rows, self.replay_order, config.n_step, config.gamma)
        parts = (split(t.obs, obs=True), *map(split, (t.actions, t.rewards, t.discounts)), split(t.next_obs, obs=True))
        return [Batch(*(part[k] for part in parts)) for k in range(count)]

    def _warn_of_dropped(self) -> None:
        dropped = self.collector.replay.dropped
        if dropped == self.dropped_seen:
            return
        if self.dropped_seen < 5 or dropped // 100 > self.dropped_seen // 100:
            warnings.warn(
                f"{self.env_name} gave a transition that is not finite; it is left out ({dropped} so far)",
                RuntimeWarning,
                stacklevel=2,
            )
        self.dropped_seen = dropped

    def deterministic_action(self, obs: Tensor) -> Tensor:
        """Give the mean action for raw observations ``[B, O]``: ``[B, A]``."""
        return self.agent.choose(obs, deterministic=True)

    # State

    def learning_state(self) -> dict[str, Any]:
        """Give networks, multipliers, optimizers, generators, environments and the schedule."""
        return {
            "acceleration": self.acceleration,
            "device": self.device.type,
            "agent": self.agent.state_dict(),
            "optimizer": self.agent.optimizer_state(),
            "action_noise": self.action_noise.get_state(),
            "update_noise": self.update_noise.get_state(),
            "replay_order": numpy_generator_state(self.replay_order),
            "collector": self.collector.state_dict(),
            "health": self.health.state_dict(),
            **{name: getattr(self, name) for name in _PLAIN_STATE},
        }

    def load_learning_state(self, state: dict[str, Any]) -> str | None:
        """Take it back; returns a sentence where that is not exact."""
        self.agent.load_state_dict(state["agent"])
        self.agent.load_optimizer_state(state["optimizer"])
        self.actor.refresh()
        self.action_noise.set_state(state["action_noise"])
        set_numpy_generator_state(self.replay_order, state["replay_order"])
        note = self.collector.load_state_dict(state["collector"])
        self.health.load_state_dict(state["health"])
        for name in _PLAIN_STATE:
            setattr(self, name, state[name])
        if state["device"] == self.device.type:
            self.update_noise.set_state(state["update_noise"])
            self.acceleration = state["acceleration"]
        else:
            note = note or self.moved_from(state["device"])
        return note

    def remember_anew(self) -> str:
        """Go on with an empty replay."""
        self.collector.begin_anew()
        self.memory.dropped = self.dropped_seen
        self.update_from = self.collector.transitions + self.config.update_after
        self.owed = 0.0
        return (
            f"{self.config.update_after:,} transitions are collected before updates go on, so the run is not what it "
            "would have been"
        )


_PLAIN_STATE = (
    "update_from", "counted", "owed", "round_at", "round_step", "next_log", "skipped_seen", "dropped_seen",
)  # fmt: skip
