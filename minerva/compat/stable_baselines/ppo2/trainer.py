"""Minerva's PPO behind a PPO2 model: how it acts while it collects, and how it learns from rollouts."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minerva.acceleration.applied import Acceleration, check_compiler, choose_acceleration, load_moments, moments
from minerva.environments import Step
from minerva.storage.rollout import RolloutBuffer
from minerva.trainers.actor import Actor
from minerva.trainers.on_policy import useful_threads
from minerva.trainers.ppo.agent import Agent
from minerva.trainers.ppo.config import PPOConfig
from minerva.trainers.ppo.trainer import PPOTrainer, report_skipped
from minerva.trainers.ppo.update import Updater, UpdateResult
from minerva.utils.cores import keep_freed_memory, usable_cores
from minerva.utils.precision import exact_cudnn
from minerva.utils.seeding import as_global_generator, torch_generator


class PPO2Trainer:
    """Act and learn with the networks of a model.

    Args:
        agent: The networks.
        config: The settings.
        seed: Seed of all random generators.
        obs_dim: O, length of a row.
        byte_rows: Whether rows are images of bytes.

    Attributes:
        rollout: The rollout that is being collected.
        last_update: Result of the newest update.
        total_steps: Environment steps of the current call of `learn`.
        env_steps: Those taken.
        updates: Updates made in it.
    """

    algorithm = "ppo2"
    env_name = "PPO2"

    def __init__(self, agent: Agent, config: PPOConfig, seed: int, obs_dim: int, byte_rows: bool) -> None:
        self.agent = agent
        self.config = config
        self.device = agent.policy.device
        self.updater = Updater(agent.policy, config)
        agent.eval()
        self.actor = Actor(agent.policy, seed)
        self.rollout = RolloutBuffer(
            config.rollout_steps,
            config.num_envs,
            obs_dim,
            agent.policy.head.action_dim,
            self.actor.device,
            agent.state_dim,
            torch.uint8 if byte_rows and agent.policy.takes_bytes else torch.float32,
        )
        self.last_update: UpdateResult | None = None
        self.last_step: Step | None = None
        self.total_steps = self.env_steps = self.updates = 0
        self._minibatch_order = torch_generator(seed, "minibatch_order")
        self._layer_noise = torch_generator(seed, "layer_noise", self.device)  # of a policy with Dropout, say
        self._acceleration: Acceleration | None = None  # chosen once: what was compiled is kept

    def final_step(self, total_steps: int) -> int:
        """Return the environment step at which a call of `learn` with so many steps ends."""
        return self.config.final_step(total_steps)

    @contextmanager
    def learning(self, total_steps: int) -> Iterator[None]:
        """Prepare a call of `learn`, and restore torch's settings after it."""
        keep_freed_memory()
        self.total_steps, self.env_steps, self.updates = total_steps, 0, 0
        self.actor.invalidate()  # the agent may have been given other weights
        if self._acceleration is None:
            policy, steps = self.agent.policy, self.config.gradient_steps(total_steps)
            worth = {} if policy.takes_bytes else PPOTrainer.worth_compiling
            chosen = choose_acceleration(self.config.compile, self.device, steps, worth, policy.static)
            self._acceleration, _ = check_compiler(chosen)
            self.updater.set_acceleration(self._acceleration)
        threads = torch.get_num_threads()
        useful = useful_threads(self.agent, self.config.minibatch_rows)
        torch.set_num_threads(max(1, min(useful, threads, usable_cores())))
        try:
            with exact_cudnn(self.device):
                yield
        finally:
            torch.set_num_threads(threads)

    def update(self, remaining: float) -> UpdateResult:
        """Learn from the full rollout.

        Args:
            remaining: The share of training that remains, which scheduled settings follow.

        Raises:
            FloatingPointError: No minibatch had a finite loss; the weights are as they were.
        """
        with as_global_generator(self._layer_noise):
            self.last_update = result = self.updater.learn(self.rollout, remaining, self._minibatch_order)
        self.actor.invalidate()
        self.updates += 1
        report_skipped(result, self.updates, lambda text: warnings.warn(text, RuntimeWarning, stacklevel=3))
        return result

    @torch.no_grad()
    def values(self, rows: NDArray[Any], recurrent_state: Tensor) -> Tensor:
        """Return the values of observations.

        Args:
            rows: ``[K, O]``.
            recurrent_state: Before them, ``[K, S]``.

        Returns:
            ``[K]``.
        """
        obs = self.agent.prepare(torch.from_numpy(rows))
        starts = torch.zeros(1, len(rows), device=self.device)
        return self.agent.policy.forward_sequence(obs[None], recurrent_state.to(self.device), starts).value[0]

    @torch.no_grad()
    def evaluate(self, actions: Any) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the values of the current observations and the negative log-probabilities of actions, each ``[N]``.

        Args:
            actions: As the actor returned them, ``[N, A]``.
        """
        obs, state, starts = (torch.as_tensor(part).to(self.device) for part in self.rollout.current())
        policy = self.agent.policy
        params, values, _ = policy.forward_sequence(obs[None], state, starts[None])
        log_probs = policy.head.log_prob(params, torch.as_tensor(actions).to(self.device)[None])
        return values[0].cpu().numpy(), -log_probs[0].cpu().numpy()

    def optimizer_state(self) -> dict[str, Any]:
        """Return the optimizer's moments and step counts, and how many minibatches were skipped."""
        return {**moments(self.updater.state), "skipped": self.updater.skipped}

    def load_optimizer_state(self, state: Mapping[str, Any]) -> None:
        """Load what `optimizer_state` returned."""
        load_moments(self.updater.state, state)
        self.updater.skipped = state["skipped"]
