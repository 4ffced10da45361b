"""V-MPO, assembled: environments, agent, rollout buffer, update."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from gymnasium import spaces

from minerva.environments.base import box_bounds
from minerva.networks.heads import head_for
from minerva.trainers.actor import Shapes
from minerva.trainers.health import Rule
from minerva.trainers.on_policy import OnPolicyTrainer
from minerva.trainers.vmpo.agent import VMPOAgent
from minerva.trainers.vmpo.batch import kept_samples, make_batch
from minerva.trainers.vmpo.config import VMPOConfig
from minerva.trainers.vmpo.health import vmpo_rules
from minerva.trainers.vmpo.update import Updater

__all__ = ["VMPOAgent", "VMPOConfig", "VMPOTrainer"]


class VMPOTrainer(OnPolicyTrainer):
    """Train a policy with V-MPO. Arguments are those of `OnPolicyTrainer`, and the fields of `VMPOConfig`."""

    algorithm: ClassVar[str] = "vmpo"
    config_class: ClassVar[type[VMPOConfig]] = VMPOConfig
    fixed_fields: ClassVar[tuple[str, ...]] = (
        "policy_layer_sizes", "value_layer_sizes", "shared_encoder", "ppo_like_backbone", "normalize_obs", "obs_clip",
        "encoder", "lstm_units", "lstm_layer_norm",
    )  # fmt: skip
    worth_compiling: ClassVar[dict[str, int]] = {"cpu": 5_000}
    config: VMPOConfig
    agent: VMPOAgent
    updater: Updater

    def health_rules(self) -> tuple[Rule, ...]:
        config, discrete = self.config, not isinstance(self.env.action_space, spaces.Box)
        return vmpo_rules(config.topk_fraction, config.batch_size, self.action_dim, discrete)

    @classmethod
    def build_agent(cls, config: VMPOConfig, shapes: Shapes, device: torch.device) -> VMPOAgent:
        act_dim = head_for(shapes.action_space).action_dim
        return VMPOAgent(act_dim=act_dim, device=device, config=config, **shapes._asdict())

    def _make_updater(self) -> Updater:
        self.agent.updater.warn = self.warn
        return self.agent.updater

    def _check_spaces(self) -> int:
        space = self.env.action_space
        if isinstance(space, spaces.Box) and not all(np.isfinite(bounds).all() for bounds in box_bounds(space)):
            raise ValueError(
                f"env: {self.env_name} has the action space {space}, whose bounds must be finite for "
                f"{self.algorithm}, which squashes actions into them; wrap it so that they are, or use ppo."
            )
        return super()._check_spaces()

    def update(self, total_updates: int) -> dict[str, float]:
        lr_scale = self.remaining(total_updates) if self.config.anneal_lr else 1.0
        real = int(self.ranks.total((self.collector.rollout.restarting == 0).sum()))
        if kept_samples(real, self.config) == 0:  # (nearly) every row crosses into a new episode: nothing to learn
            metrics = {"vmpo/restarting_frac": 1 - real / self.config.batch_size}
        else:
            rollout = self.collector.rollout.on(self.device)
            batch = make_batch(self.agent.policy, rollout, self.config)
            metrics = self.updater.learn(batch, lr_scale, self.minibatch_order, rollout) or {}
        self.actor.invalidate()
        metrics["charts/learning_rate"] = self.config.policy_lr * lr_scale
        metrics["health/skipped"] = float(self.updater.skipped)
        self.check_health(metrics)
        return metrics
