"""PPO's trainer for the vector environments and policies of stable-baselines."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from minerva.callbacks import Callback
from minerva.compat.stable_baselines.common.callbacks import BaseCallback
from minerva.compat.stable_baselines.common.vec_env.group_vec_env import VecEnv
from minerva.compat.stable_baselines.ppo2.reporting import EpisodeInfo, Reporter
from minerva.compat.stable_baselines.ppo2.rows import observations_of
from minerva.environments import BatchedEnvironment, EnvFactory, Step
from minerva.networks.encoders import MakeEncoder
from minerva.trainers.ppo.agent import Agent
from minerva.trainers.ppo.config import PPOConfig
from minerva.trainers.ppo.trainer import PPOTrainer


class PPO2Trainer(PPOTrainer):
    """A `PPOTrainer` that receives its environments and networks.

    Args:
        venv: The environments.
        agent: The networks.
        config: The settings.
        seed: Seed of all random generators.
        device: Device of the networks.
    """

    def __init__(self, venv: VecEnv, agent: Agent, config: PPOConfig, seed: int, device: str) -> None:
        self._venv = venv
        self._initial_agent = agent
        self.reporter: Reporter | None = None
        self.steps_before = 0  # steps of earlier calls of `learn`, if they are counted
        super().__init__(_no_environment, seed, device, config)

    def _make_agent(self, make_encoder: MakeEncoder | None = None) -> Agent:
        agent = self._initial_agent.to(self.device)
        agent.obs_normalizer.cpu()
        return agent

    @property
    def num_timesteps(self) -> int:
        """Environment steps, counted as in PPO2."""
        return self.steps_before + self.env_steps

    def _make_environment(self, env_id: str | EnvFactory) -> BatchedEnvironment:
        self.env_name = "PPO2"
        return self._venv.batch(self.seed)

    def update(self, total_updates: int) -> dict[str, float]:
        """Learn from the full rollout and report the update."""
        remaining = self.remaining(total_updates)
        metrics = super().update(total_updates)
        if self.reporter is not None and self.last_update is not None:
            self.reporter.update_done(
                self.last_update,
                self.agent,
                self.config,
                remaining,
                self.updates + 1,
                self.num_timesteps,
                self.env.raw_observation_space,
            )
        return metrics


class Bridge(Callback):
    """Forward the events of a run to callbacks of stable-baselines.

    Args:
        model: The model that callbacks know; its `num_timesteps` is kept up to date.
        callback: The callbacks.
        local_variables: The local variables that callbacks receive.
        reporter: Receives every step.
    """

    def __init__(self, model: Any, callback: BaseCallback, local_variables: dict[str, Any], reporter: Reporter) -> None:
        self._model = model
        self._callback = callback
        self._locals = local_variables
        self._reporter = reporter

    def on_training_start(self, trainer: PPO2Trainer) -> None:
        """Forward the start of training."""
        self._callback.on_training_start(self._locals, {})

    def on_rollout_start(self, trainer: PPO2Trainer) -> None:
        """Forward the start of a rollout."""
        self._callback.on_rollout_start()

    def on_step(self, trainer: PPO2Trainer) -> bool:
        """Forward the step, with its results among the local variables."""
        step = trainer.last_step
        assert step is not None
        self._model.num_timesteps = trainer.num_timesteps
        episodes = self._reporter.step_done(step, trainer.num_timesteps)
        self._locals.update(
            obs=observations_of(trainer.env.raw_observation_space, step.observations),
            rewards=step.rewards,
            dones=step.terminated | step.truncated,
            infos=infos_of(step, episodes),
            n_steps=trainer.collector.rollout.position,
            update=trainer.updates + 1,
        )
        return self._callback.on_step() is not False

    def on_rollout_end(self, trainer: PPO2Trainer) -> None:
        """Forward the end of a rollout."""
        self._callback.on_rollout_end()

    def on_training_end(self, trainer: PPO2Trainer) -> None:
        """Forward the end of training."""
        self._callback.on_training_end()


def infos_of(step: Step, episodes: list[EpisodeInfo]) -> list[dict[str, Any]]:
    """Build the infos of a step, in place of those of the environments."""
    infos: list[dict[str, Any]] = [{} for _ in step.rewards]
    for i in np.flatnonzero(step.terminated | step.truncated):
        infos[i]["TimeLimit.truncated"] = bool(step.truncated[i] and not step.terminated[i])
    for episode, record in zip(step.episodes, episodes, strict=True):
        infos[episode.env_index]["episode"] = record
    return infos


def _no_environment() -> gymnasium.Env[Any, Any]:
    raise NotImplementedError  # never called: evaluation is off, and the environments exist
