"""PPO, assembled: environments, agent, rollout, optimizer, loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from minerva.environments.ids import EnvFactory
from minerva.networks.encoders import images_in
from minerva.networks.heads import head_for
from minerva.trainers.accelerate import compiler_available
from minerva.trainers.flat import Twin
from minerva.trainers.gradient_step import GradientStep
from minerva.trainers.loop import on_policy_loop
from minerva.trainers.on_policy import (
    evaluation_policy,
    is_small,
    make_collector,
    no_whole_rollout,
    settle_compiled,
    whole_rollouts,
)
from minerva.trainers.ppo.acting import acts_on_numpy, make_actor
from minerva.trainers.ppo.agent import Agent, MakeEncoder, make_agent
from minerva.trainers.ppo.config import PPOConfig
from minerva.trainers.ppo.update import Batch, UpdateResult, make_gradient_step, make_optimizer, update
from minerva.trainers.run import Run
from minerva.trainers.trainer import ROWS_A_THREAD, Trainer
from minerva.utils.cores import usable_cores
from minerva.utils.seeding import initialization_seed, torch_generator

__all__ = ["Agent", "PPOConfig", "PPOTrainer"]

COMPILED_FROM = 100_000
"""Gradient steps of a run from which on compiling them saves more time than it takes."""


class PPOTrainer(Trainer):
    """Trains a policy with PPO.

    It trains in whole rollouts; steps beyond the last of them are left over. When a resumed run is given more steps
    than before, its learning rate follows the line of the longer run from there on.

    Args:
        env_id: A Gymnasium id, ``dm_control/<domain>/<task>``, or a callable that returns a `gymnasium.Env`.
        seed: Environment i is seeded from ``seed + i``; every other generator is spawned from it.
        device: "auto", "cpu", "cuda", …
        config: A `PPOConfig`; by default its defaults.
        make_encoder: Makes your own encoder, a module from rows ``[B, O]`` to features ``[B, F]``; it is called once
            for the policy and, unless they share it, once for the critic. `encoder` is "custom" then.
        **fields: Fields of `PPOConfig`, on top of `config`.
    """

    algorithm: ClassVar[str] = "ppo"
    fixed_fields: ClassVar[tuple[str, ...]] = (
        "policy_layer_sizes", "critic_layer_sizes", "normalize_obs", "encoder", "shared_encoder", "lstm_units",
        "lstm_layer_norm",
    )  # fmt: skip
    resumed_fields: ClassVar[tuple[str, ...]] = ("num_envs", "rollout_steps", "normalize_reward", "optimizer_type")
    config: PPOConfig
    agent: Agent

    def __init__(
        self,
        env_id: str | EnvFactory,
        seed: int = 42,
        device: str = "auto",
        config: PPOConfig | None = None,
        make_encoder: MakeEncoder | None = None,
        **fields: Any,
    ) -> None:
        if make_encoder is not None:
            fields = {**fields, "encoder": "custom"}
        config = PPOConfig.from_fields(config, fields)
        super().__init__(env_id, seed, device, config)
        with initialization_seed(seed), self.closing_on_error():
            self.agent = self._make_agent(make_encoder).to(self.device)
        self.agent.obs_normalizer.cpu()  # it takes in observations as they come from the environments
        self._twin = Twin(self.agent, acts_on_numpy(self.agent) and is_small(self.agent))
        acting = self._twin.module
        self.optimizer = make_optimizer(self.agent, config)
        self.compiled: bool | None = None  # decided when the run's length is known, and kept to its end
        self._gradient_step: GradientStep | None = None
        self.last_update: UpdateResult | None = None
        self._run: Run | None = None
        self.action_noise = torch_generator(seed, "action_noise", acting.device)
        self.minibatch_order = torch_generator(seed, "minibatch_order")
        self.collector = make_collector(
            self.env,
            config.rollout_steps,
            self.action_dim,
            acting.device,
            make_actor(acting, self.action_noise),
            self.agent.obs_normalizer,
            config.gamma if config.normalize_reward else None,
            self.agent.state_dim,
            torch.uint8 if self.env.observation_dtype == np.uint8 and self._takes_bytes() else torch.float32,
        )

    def _make_agent(self, make_encoder: MakeEncoder | None) -> Agent:
        env = self.env
        return make_agent(
            self.config, env.raw_observation_space, env.action_space, env.observation_dim, env.mask_dim, make_encoder
        )

    def _takes_bytes(self) -> bool:
        return self.agent.takes_bytes

    def _check_action_space(self) -> int:
        try:
            return head_for(self.env.action_space).action_dim
        except ValueError as error:
            raise ValueError(f"env: {self.env_name} has an unsupported {error}") from error

    def useful_threads(self) -> int:
        """Give the number of torch's threads that its gradient steps are fastest with on a CPU of many cores."""
        convolves = any(isinstance(module, nn.Conv2d) for module in self.agent.modules())
        return usable_cores() if convolves else self.config.minibatch_size // ROWS_A_THREAD

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
        self._run = run
        self._twin.refresh()
        on_policy_loop(self, run, whole_rollouts(run.total_steps, self.config.batch_size))

    def _choose_compiled(self, total_steps: int) -> bool:
        config = self.config
        if config.compile == "auto":
            return (
                self.device.type == "cpu"
                and self.agent.trunk is None
                and config.optimizer_type == "adam"
                and config.gradient_steps(total_steps) >= COMPILED_FROM
                and compiler_available()
            )
        return config.compile

    def update(self, total_updates: int) -> dict[str, float]:
        """Learn from the full rollout; the learning rate falls linearly with the updates made.

        Raises:
            FloatingPointError: No minibatch had a finite loss; the weights are as they were.
        """
        config = self.config
        # LaTeX[Huang2022]: s_u = 1 - \frac{u - 1}{U}
        remaining = 1 - self.updates / total_updates
        learning_rate = config.policy_lr_at(remaining)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        if self._gradient_step is None:
            self._gradient_step = make_gradient_step(self.agent, self.optimizer, config, bool(self.compiled))
        result = update(
            self.agent, self._gradient_step, self.collector.rollout, config, self.minibatch_order, remaining
        )
        self._twin.refresh()
        self.last_update = result
        if result.gradient_steps == 0:
            raise FloatingPointError(
                f"every loss of update {self.updates + 1} was infinite or not a number; the weights were not touched. "
                "Try a lower policy_lr or max_grad_norm."
            )
        if result.skipped:
            warnings.warn(
                f"{result.skipped} minibatches of update {self.updates + 1} had a loss or gradient that is not finite "
                "and were skipped; a lower policy_lr or max_grad_norm may help",
                RuntimeWarning,
                stacklevel=2,
            )
        if self._run is not None and self._run.takes_arrays:
            self._show(self._run, result.batch)
        return {"charts/learning_rate": learning_rate, **result.metrics}

    def _show(self, run: Run, batch: Batch) -> None:
        """Write what only TensorBoard can show: weights, what was learned from, and what was seen."""
        run.histograms({f"weights/{name}": parameter for name, parameter in self.agent.named_parameters()})
        inputs = ("obs", "actions", "log_probs", "values", "advantages", "returns")
        run.histograms({f"inputs/{name}": getattr(batch, name).float() for name in inputs})
        seen = images_in(self.env.raw_observation_space, batch.obs.flatten(0, -2)[-1].cpu().numpy())
        run.images({f"observation/{name}".rstrip("/"): image for name, image in seen.items()})

    def deterministic_action(self, obs: Tensor) -> Tensor:
        """Give the likeliest action for raw observations ``[B, O]``: ``[B, A]``; with a memory, from an empty one."""
        return self.agent.choose(obs, deterministic=True)

    def evaluation_policy(self) -> Callable[[Tensor], Tensor]:
        """Give the policy for the episodes of one evaluation, all of which begin with its first call."""
        return evaluation_policy(self.agent)

    def learning_state(self) -> dict[str, Any]:
        """Give networks, normalizers, optimizer, generators, environments and the partial rollout."""
        return {
            "compiled": self.compiled,
            "device": self.device.type,
            "agent": self.agent.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "action_noise": self.action_noise.get_state(),
            "minibatch_order": self.minibatch_order.get_state(),
            "collector": self.collector.state_dict(),
        }

    def load_learning_state(self, state: dict[str, Any]) -> str | None:
        """Take it back; returns a sentence where that is not exact."""
        self.agent.load_state_dict(state["agent"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.minibatch_order.set_state(state["minibatch_order"])
        note = self.collector.load_state_dict(state["collector"])
        if state["device"] == self.device.type:
            self.compiled = state["compiled"]
            self.action_noise.set_state(state["action_noise"])
            return note
        return note or self.moved_from(state["device"])
