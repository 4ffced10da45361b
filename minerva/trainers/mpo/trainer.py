"""MPO, assembled: environments, agent, replay buffer, update."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minerva.acceleration.applied import Acceleration
from minerva.environments.base import box_bounds
from minerva.networks.encoders import MakeEncoder
from minerva.networks.heads import head_for
from minerva.trainers.actor import BaseAgent, Shapes
from minerva.trainers.health import Rule
from minerva.trainers.mpo.agent import MPOAgent
from minerva.trainers.mpo.config import MPOConfig
from minerva.trainers.mpo.health import MPO_RULES
from minerva.trainers.mpo.update import Batch, SequenceBatch, named_metrics
from minerva.trainers.off_policy import OffPolicyTrainer
from minerva.trainers.trainer import ROWS_PER_THREAD
from minerva.utils.seeding import torch_generator, torch_generator_state

__all__ = ["MPOAgent", "MPOConfig", "MPOTrainer"]


class MPOTrainer(OffPolicyTrainer):
    """Train a policy with MPO. Arguments are those of `Trainer`, and the fields of `MPOConfig`."""

    algorithm: ClassVar[str] = "mpo"
    config_class: ClassVar[type[MPOConfig]] = MPOConfig
    fixed_fields: ClassVar[tuple[str, ...]] = (
        "policy_layer_sizes", "critic_layer_sizes", "normalize_obs", "obs_clip",
    )  # fmt: skip
    resumed_fields: ClassVar[tuple[str, ...]] = (
        "num_envs", "rollout_workers", "asynchronous", "replay_size", "use_retrace", "optimizer_type",
    )  # fmt: skip
    worth_compiling: ClassVar[dict[str, int]] = {"cpu": 20_000, "cuda": 100_000}
    config: MPOConfig
    agent: MPOAgent

    def health_rules(self) -> tuple[Rule, ...]:
        return MPO_RULES

    @classmethod
    def build_agent(cls, config: MPOConfig, shapes: Shapes, device: torch.device) -> MPOAgent:
        dims = (shapes.obs_dim, head_for(shapes.action_space).action_dim)
        return MPOAgent(*dims, *box_bounds(shapes.action_space), device, config=config)

    def _make_agent(self, make_encoder: MakeEncoder | None = None) -> BaseAgent:
        agent = super()._make_agent()
        assert isinstance(agent, MPOAgent)
        agent.generator = self.update_noise = torch_generator(self.seed, "update_noise", self.device)
        return agent

    @property
    def stores_log_probs(self) -> bool:
        return self.config.use_retrace

    def useful_threads(self) -> int:
        return self.config.batch_size * self.config.action_samples // ROWS_PER_THREAD

    def set_acceleration(self, acceleration: Acceleration) -> None:
        self.agent.set_acceleration(acceleration)

    def learn(self, count: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Make so many updates; return whether the newest one was finite, and its metrics."""
        for batch in self._sample(count):
            result = self.agent.step(batch, self.agent.draw_noise(batch))
        return result

    def metrics_of(self, result: tuple[Tensor, dict[str, Tensor]]) -> dict[str, float]:
        finite, metrics = result
        return named_metrics(metrics) if finite else {}

    @property
    def skipped_updates(self) -> int:
        return int(self.agent.skipped)

    def _sample(self, count: int) -> list[Batch] | list[SequenceBatch]:
        """Sample the batches of a round of updates."""
        config, replay = self.config, self.replay
        rows = count * config.batch_size

        def split(array: NDArray[np.float32], obs: bool = False) -> Tensor:
            tensor = torch.from_numpy(array)
            tensor = self.agent.prepare(tensor) if obs else tensor.to(self.device)
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

    # State

    def learning_state(self) -> dict[str, Any]:
        own = {"optimizer": self.agent.optimizer_state(), "update_noise": self.update_noise.get_state()}
        return {**super().learning_state(), **own}

    def state_checks(self, same_device: bool) -> dict[str, Any]:
        own = {"update_noise": torch_generator_state(self.update_noise, same_device)}
        return {**super().state_checks(same_device), **own}

    def load_learning_state(self, state: dict[str, Any]) -> str | None:
        self.agent.load_optimizer_state(state["optimizer"])
        if state["device"] == self.device.type:
            self.update_noise.set_state(state["update_noise"])
        return super().load_learning_state(state)
