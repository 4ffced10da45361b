"""What trainers that learn from whole rollouts share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from minerva.acceleration.applied import Acceleration, load_moments, moments
from minerva.environments import RewardNormalizer
from minerva.environments.ids import EnvLike
from minerva.networks.encoders import MakeEncoder
from minerva.objectives.returns import (
    Advantages,
    bootstrapped_returns,
    generalized_advantage_estimation,
    temporal_difference,
)
from minerva.storage.rollout import RolloutBuffer
from minerva.trainers.actor import Actor
from minerva.trainers.collector import RolloutCollector
from minerva.trainers.config import OnPolicyConfig
from minerva.trainers.loop import on_policy_loop
from minerva.trainers.run import Run
from minerva.trainers.trainer import ROWS_PER_THREAD, Trainer
from minerva.utils.cores import usable_cores
from minerva.utils.modes import changes_buffers, is_pure
from minerva.utils.ranks import Ranks
from minerva.utils.running_norm import FrozenNorm, RunningNorm
from minerva.utils.seeding import spawn_seed, torch_generator, torch_generator_state


def estimate_advantages(rollout: RolloutBuffer, values: Tensor, config: OnPolicyConfig) -> Advantages:
    """Estimate advantages and returns of a rollout with the config's estimator (values: ``[T+1, N]``)."""
    episode = (rollout.rewards, values, rollout.terminated, rollout.truncated)
    if config.advantage_estimator == "gae":
        return generalized_advantage_estimation(*episode, config.gamma, config.gae_lambda)
    if config.advantage_estimator == "returns":
        return bootstrapped_returns(*episode, config.gamma)
    # LaTeX[Schulman2016, eq. 17]: A_t = \delta_t
    advantages = temporal_difference(rollout.rewards, values, rollout.terminated, config.gamma)
    # LaTeX: R_t = A_t + V(s_t)
    return Advantages(advantages, advantages + values[:-1])


def useful_threads(agent: nn.Module, minibatch_rows: int) -> int:
    """Return the number of torch threads with which gradient steps are fastest on a CPU of many cores."""
    convolves = any(isinstance(module, nn.Conv2d) for module in agent.modules())
    return usable_cores() if convolves else minibatch_rows // ROWS_PER_THREAD


class Updater(Protocol):
    """The interface of what learns from rollouts, one class per on-policy algorithm."""

    state: Any  # everything that an update changes, a NamedTuple of `Learnable`s
    skipped: int  # updates or minibatches that were skipped because a number was not finite

    def set_acceleration(self, acceleration: Acceleration) -> None:
        """Run updates this way from now on."""
        ...

    def set_ranks(self, ranks: Ranks) -> None:
        """Learn together with other processes."""
        ...


class OnPolicyTrainer(Trainer):
    """A trainer that collects whole rollouts and learns from each of them; steps beyond the last one are left over.

    Args:
        env_id: As for `Trainer`, like the next three.
        seed: The seed.
        device: The device.
        config: The config.
        make_encoder: Builds your own encoder, a module from rows ``[B, O]`` to features ``[B, F]``; `encoder` is
            "custom" then. It is called once for the policy and, unless they share it, once for the critic.
        **fields: Fields of the config, on top of `config`.
    """

    resumed_fields: ClassVar[tuple[str, ...]] = (
        "num_envs", "rollout_workers", "rollout_steps", "normalize_reward", "optimizer_type",
    )  # fmt: skip
    config: OnPolicyConfig
    updater: Updater
    """How the algorithm learns from rollouts."""

    def __init__(
        self,
        env_id: EnvLike,
        seed: int = 42,
        device: str = "auto",
        config: OnPolicyConfig | None = None,
        make_encoder: MakeEncoder | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(
            env_id, seed, device, config, **({**fields, "encoder": "custom"} if make_encoder is not None else fields)
        )
        config = self.config
        self.agent = self._make_agent(make_encoder)
        with self.close_envs_on_error():
            self._check_encoder()
        self.updater = self._make_updater()
        if self.ranks.count > 1:
            self.updater.set_ranks(self.ranks)
        self.agent.eval()  # it acts in evaluation mode; the updater takes gradient steps in training mode
        own_seed = seed if self.ranks.rank == 0 else spawn_seed(seed, f"rank {self.ranks.rank}")
        self.minibatch_order = torch_generator(own_seed, "minibatch_order")
        self.layer_noise = torch_generator(own_seed, "layer_noise", self.device)  # of an encoder with Dropout, say
        self.actor = Actor(self.agent.policy, own_seed)
        with self.close_envs_on_error():
            self.collector = self._make_collector()

    def _make_collector(self) -> RolloutCollector:
        config, env, agent = self.config, self.env, self.agent
        as_bytes = env.observation_dtype == np.uint8 and agent.policy.takes_bytes
        rollout = RolloutBuffer(
            config.rollout_steps,
            env.num_envs,
            env.observation_dim,
            self.action_dim,
            self.actor.device if config.rollout_workers is None else torch.device("cpu"),
            agent.state_dim,
            torch.uint8 if as_bytes else torch.float32,
        )
        rewards = RewardNormalizer(config.num_envs, config.gamma) if config.normalize_reward else None
        running = agent.obs_normalizer if isinstance(agent.obs_normalizer, RunningNorm) else None
        if config.rollout_workers is None and self.ranks.count == 1:
            return RolloutCollector(env, rollout, self.actor, running, rewards)
        frozen = None if running is None else FrozenNorm(running)
        if config.rollout_workers is None:
            return RolloutCollector(env, rollout, self.actor, frozen, rewards, self.ranks)
        from minerva.trainers.segment_collectors import SegmentRolloutCollector, prepared_workers

        workers = prepared_workers(self, config.rollout_steps)
        return SegmentRolloutCollector(workers, rollout, self.actor, frozen, rewards)

    def _check_encoder(self) -> None:
        """Refuse what cannot be done with an encoder with Dropout or BatchNorm.

        Compiled, its noise and statistics would not be the plain run's. With several processes, its statistics would
        be those of one process's rows.
        """
        if self.config.encoder != "custom":
            return  # no other encoder has such layers
        rows = torch.zeros(2, self.env.observation_dim - self.env.mask_dim, device=self.device)
        encoders = [part for name, part in self.agent.policy.named_children() if name.endswith("_encoder")]
        if self.ranks.count > 1 and any(changes_buffers(encoder, rows) for encoder in encoders):
            raise ValueError(
                "make_encoder: must have no layers that change their buffers in training (BatchNorm) with several "
                f"processes, got some with {self.ranks.count}; use LayerNorm, or one process."
            )
        if self.config.compile is True and not all(is_pure(encoder, rows) for encoder in encoders):
            raise ValueError(
                "compile: must be 'auto' or False with an encoder whose layers draw noise or change their buffers in "
                "training (Dropout, BatchNorm), got True."
            )

    # What an algorithm provides

    @abstractmethod
    def _make_updater(self) -> Updater:
        """Return what learns, of the agent."""

    @abstractmethod
    def update(self, total_updates: int) -> dict[str, float]:
        """Learn from the full rollout and return what to log."""

    # The run

    def remaining(self, total_updates: int) -> float:
        """Return the share of training that remains before the next update."""
        # LaTeX[Huang2022]: s_u = 1 - \frac{u - 1}{U}
        return 1 - self.updates / total_updates

    def num_updates(self, total_steps: int) -> int:
        """Return the updates of a run of so many steps."""
        # LaTeX: U = \left\lfloor \frac{\mathrm{total\_steps}}{N T} \right\rfloor
        return total_steps // self.config.batch_size

    def useful_threads(self) -> int:
        return useful_threads(self.agent, self.config.minibatch_rows)

    def gradient_steps(self, total_steps: int) -> float:
        return self.config.gradient_steps(total_steps)

    def set_acceleration(self, acceleration: Acceleration) -> None:
        self.updater.set_acceleration(acceleration)

    def begin(self) -> None:
        self.collector.begin()

    @property
    def unit(self) -> str:
        return f"rollouts of {self.config.batch_size:,} steps"

    def between_updates(self) -> bool:
        return self.collector.rollout.position == 0

    def run_loop(self, run: Run) -> None:
        self.accelerate(run)
        on_policy_loop(self, run, self.num_updates(run.total_steps))

    # State

    def check_policy(self, state: Mapping[str, Any]) -> None:
        super().check_policy(state)
        self.collector.check_reward_statistics(state.get("collector"), "state.collector")

    def load_policy(self, state: Mapping[str, Any]) -> None:
        super().load_policy(state)
        self.collector.load_reward_statistics(state["collector"]["reward_normalizer"])

    def optimizer_state(self) -> dict[str, Any]:
        """Return the optimizers' moments and step counts, and how many updates were skipped."""
        return {**moments(self.updater.state), "skipped": self.updater.skipped}

    def load_optimizer_state(self, state: Mapping[str, Any]) -> None:
        """Load what `optimizer_state` returned."""
        load_moments(self.updater.state, state)
        self.updater.skipped = state["skipped"]

    def learning_state(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer_state(), **self._collecting_state()}

    def own_state(self) -> dict[str, Any]:
        return {"action_noise": self.actor.generator.get_state(), **self._collecting_state()}

    def _collecting_state(self) -> dict[str, Any]:
        return {
            "minibatch_order": self.minibatch_order.get_state(),
            "layer_noise": self.layer_noise.get_state(),
            "collector": self.collector.state_dict(),
        }

    def state_checks(self, same_device: bool) -> dict[str, Any]:
        return {
            **super().state_checks(same_device),
            "minibatch_order": torch_generator_state(self.minibatch_order),
            "layer_noise": torch_generator_state(self.layer_noise, same_device),
            "collector": self.collector.check_state,
        }

    def load_learning_state(self, state: dict[str, Any]) -> str | None:
        self.load_optimizer_state(state["optimizer"])
        self.minibatch_order.set_state(state["minibatch_order"])
        if state["device"] == self.device.type:
            self.layer_noise.set_state(state["layer_noise"])
        return self.collector.load_state_dict(state["collector"])
