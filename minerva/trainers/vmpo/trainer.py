"""V-MPO, assembled: environments, agent, rollout, loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from torch import Tensor

from minerva.environments.base import box_bounds
from minerva.environments.ids import EnvFactory
from minerva.networks.heads import head_for
from minerva.trainers.accelerate import compiler_available
from minerva.trainers.flat import Twin
from minerva.trainers.health import Health, vmpo_rules
from minerva.trainers.loop import on_policy_loop
from minerva.trainers.on_policy import (
    evaluation_policy,
    is_small,
    make_collector,
    no_whole_rollout,
    settle_compiled,
    whole_rollouts,
)
from minerva.trainers.run import Run
from minerva.trainers.trainer import ROWS_A_THREAD, Trainer
from minerva.trainers.vmpo.acting import acts_on_numpy, make_actor
from minerva.trainers.vmpo.agent import VMPOAgent, make_batch
from minerva.trainers.vmpo.config import VMPOConfig
from minerva.utils.seeding import initialization_seed, torch_generator

__all__ = ["VMPOAgent", "VMPOConfig", "VMPOTrainer"]

COMPILED_FROM = 5_000
"""Gradient steps of a run from which on compiling them saves more time than it takes."""


class VMPOTrainer(Trainer):
    """Trains a policy with V-MPO, in whole rollouts; steps beyond the last of them are left over.

    Args:
        env_id: A Gymnasium id, ``dm_control/<domain>/<task>``, or a callable that returns a `gymnasium.Env`.
        seed: Environment i is seeded from ``seed + i``; every other generator is spawned from it.
        device: "auto", "cpu", "cuda", …
        config: A `VMPOConfig`; by default its defaults.
        **fields: Fields of `VMPOConfig`, on top of `config`.
    """

    algorithm: ClassVar[str] = "vmpo"
    fixed_fields: ClassVar[tuple[str, ...]] = (
        "policy_layer_sizes", "value_layer_sizes", "shared_encoder", "ppo_like_backbone", "normalize_obs",
        "lstm_units", "lstm_layer_norm",
    )  # fmt: skip
    resumed_fields: ClassVar[tuple[str, ...]] = ("num_envs", "rollout_steps", "normalize_reward", "optimizer_type")
    config: VMPOConfig
    agent: VMPOAgent

    def __init__(
        self,
        env_id: str | EnvFactory,
        seed: int = 42,
        device: str = "auto",
        config: VMPOConfig | None = None,
        **fields: Any,
    ) -> None:
        config = VMPOConfig.from_fields(config, fields)
        super().__init__(env_id, seed, device, config)
        env = self.env
        with initialization_seed(seed):
            self.agent = VMPOAgent(
                env.observation_dim,
                self.action_dim,
                device=self.device,
                config=config,
                action_space=env.action_space,
                mask_dim=env.mask_dim,
            )
        self.compiled: bool | None = None  # decided when the run's length is known, and kept to its end
        discrete = not isinstance(env.action_space, spaces.Box)
        self.health = Health(vmpo_rules(config.topk_fraction, config.batch_size, self.action_dim, discrete))
        self._warn: Callable[[str], None] | None = None  # tells the user something, while a run is open
        policy = self.agent.policy
        self._twin = Twin(policy, acts_on_numpy(policy) and is_small(policy))
        acting = self._twin.module
        acting_device = acting.value_head.weight.device
        self.action_noise = torch_generator(seed, "action_noise", acting_device)
        self.minibatch_order = torch_generator(seed, "minibatch_order")
        self.collector = make_collector(
            self.env,
            config.rollout_steps,
            self.action_dim,
            acting_device,
            make_actor(self.agent, self.action_noise, acting),
            self.agent.obs_normalizer,
            config.gamma if config.normalize_reward else None,
            self.agent.state_dim,
        )

    def _check_action_space(self) -> int:
        space = self.env.action_space
        if isinstance(space, spaces.Box) and not all(np.isfinite(bounds).all() for bounds in box_bounds(space)):
            raise ValueError(
                f"env: {self.env_name} has the action space {space}, whose bounds must be finite for "
                f"{self.algorithm}, which squashes actions into them; wrap it so that they are, or use ppo."
            )
        try:
            return head_for(space).action_dim
        except ValueError as error:
            raise ValueError(f"env: {self.env_name} has an unsupported {error}") from error

    def useful_threads(self) -> int:
        """Give the number of torch's threads that its gradient steps are fastest with on a CPU of many cores."""
        return self.config.batch_size // self.config.minibatches // ROWS_A_THREAD

    def begin(self) -> None:
        """Start the first episodes."""
        self.collector.begin()

    def too_short(self, total_steps: int) -> str | None:
        """Say why a run of so many steps has no update to make."""
        return no_whole_rollout(total_steps, self.config.batch_size)

    def final_step(self, total_steps: int) -> int:
        """Give the environment step at which a run of so many steps ends: whole rollouts."""
        return whole_rollouts(total_steps, self.config.batch_size) * self.config.batch_size

    def between_updates(self) -> bool:
        """Whether the rollout is empty."""
        return self.collector.rollout.position == 0

    def run_loop(self, run: Run) -> None:
        """Train until the run ends."""
        if self.compiled is None:
            self.compiled = self._choose_compiled(run.total_steps)
        self.compiled = settle_compiled(run, self.compiled)
        self.agent.use_accelerated(self.compiled, self.device.type == "cuda" and not self.config.lstm_units)
        self._twin.refresh()
        self._warn = run.warn
        on_policy_loop(self, run, whole_rollouts(run.total_steps, self.config.batch_size))

    def _choose_compiled(self, total_steps: int) -> bool:
        if self.config.compile != "auto":
            return self.config.compile
        long = self.config.gradient_steps(total_steps) >= COMPILED_FROM
        return self.device.type == "cpu" and not self.config.lstm_units and long and compiler_available()

    def update(self, total_updates: int) -> dict[str, float]:
        """Learn from the full rollout; where a number was not finite nothing changes, and the run goes on."""
        # LaTeX[Huang2022]: 1 - \frac{u - 1}{U}
        share = 1 - self.updates / total_updates if self.config.anneal_lr else 1.0
        rollout = self.collector.rollout.on(self.device)
        batch = make_batch(self.agent, rollout)
        metrics = self.agent.learn(batch, share, self.minibatch_order, rollout) or {}
        self._twin.refresh()
        metrics["charts/learning_rate"] = self.config.policy_lr * share
        metrics["health/skipped"] = float(self.agent.skipped)
        for warning in self.health.check(metrics):
            if self._warn is not None:
                self._warn(warning)
        return metrics

    def deterministic_action(self, obs: Tensor) -> Tensor:
        """Give the likeliest action for raw observations ``[B, O]``: ``[B, A]``; with a memory, from an empty one."""
        return self.agent.choose(obs, deterministic=True)

    def evaluation_policy(self) -> Callable[[Tensor], Tensor]:
        """Give the policy for the episodes of one evaluation, all of which begin with its first call."""
        return evaluation_policy(self.agent)

    def learning_state(self) -> dict[str, Any]:
        """Give networks, multipliers, normalizers, optimizers, generators, environments and the partial rollout."""
        return {
            "compiled": self.compiled,
            "device": self.device.type,
            "agent": self.agent.state_dict(),
            "optimizer": self.agent.optimizer_state(),
            "health": self.health.state_dict(),
            "action_noise": self.action_noise.get_state(),
            "minibatch_order": self.minibatch_order.get_state(),
            "collector": self.collector.state_dict(),
        }

    def load_learning_state(self, state: dict[str, Any]) -> str | None:
        """Take it back; returns a sentence where that is not exact."""
        self.agent.load_state_dict(state["agent"])
        self.agent.load_optimizer_state(state["optimizer"])
        self.health.load_state_dict(state["health"])
        self.minibatch_order.set_state(state["minibatch_order"])
        note = self.collector.load_state_dict(state["collector"])
        if state["device"] == self.device.type:
            self.compiled = state["compiled"]
            self.action_noise.set_state(state["action_noise"])
            return note
        return note or self.moved_from(state["device"])
