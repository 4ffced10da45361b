"""Callbacks with the interface of stable-baselines."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from minerva.callbacks import Callback
from minerva.callbacks.checks import positive_int
from minerva.compat.stable_baselines.common.evaluation import evaluate_policy
from minerva.compat.stable_baselines.common.vec_env.base_vec_env import VecEnv
from minerva.compat.stable_baselines.common.vec_env.dummy_vec_env import DummyVecEnv
from minerva.compat.stable_baselines.common.vec_env.vec_normalize import sync_envs_normalization
from minerva.compat.stable_baselines.logger import Logger
from minerva.environments import Step
from minerva.environments.base import Episode

if TYPE_CHECKING:
    from minerva.compat.stable_baselines.ppo2.ppo2 import PPO2
    from minerva.compat.stable_baselines.ppo2.trainer import PPO2Trainer

CallbackFunction = Callable[[dict[str, Any], dict[str, Any]], "bool | None"]
"""A function of the local and the global variables, called at every step; False stops training."""


class BaseCallback:
    """Base class of callbacks: override `_on_step` and the other methods you need.

    Args:
        verbose: Whether to print messages.

    Attributes:
        model: The model in training.
        n_calls: Number of calls of `on_step`.
        num_timesteps: Number of environment steps.
        locals: The variables of training: ``self`` (the model; in a rollout its runner, which has the attributes of the
            model too), ``actions``, ``clipped_actions``, ``values``, ``neglogpacs``, ``obs``, ``rewards``, ``dones``,
            ``infos`` (of the environments), ``n_steps``, …
        globals: The global variables of the module that trains.
        logger: The current logger; its `logkv(name, value)` adds to the table and to TensorBoard.
        parent: The callback that calls this one, or None.
    """

    def __init__(self, verbose: int = 0) -> None:
        self.model: Any = None
        self.n_calls = 0
        self.num_timesteps = 0
        self.verbose = verbose
        self.locals: dict[str, Any] = {}
        self.globals: dict[str, Any] = {}
        self.logger: Any = None
        self.parent: Any = None
        self.training_env: VecEnv | None = None

    def init_callback(self, model: PPO2) -> None:
        """Store the model before training."""
        self.model = model
        self.training_env = model.get_env()
        self.logger = Logger.CURRENT
        self._init_callback()

    def update_locals(self, locals_: dict[str, Any]) -> None:
        """Add the variables of a step to `locals`, which all callbacks of a call of `learn` share."""
        self.locals.update(locals_)

    def on_training_start(self, locals_: dict[str, Any], globals_: dict[str, Any]) -> None:
        """Run at the start of `learn`."""
        self.locals, self.globals = locals_, globals_
        self._on_training_start()

    def on_rollout_start(self) -> None:
        """Run at the start of a rollout."""
        self._on_rollout_start()

    def on_step(self) -> bool | None:
        """Count the step and run `_on_step`; return False to stop training."""
        self.n_calls += 1
        self.num_timesteps = self.model.num_timesteps
        return self._on_step()

    def on_rollout_end(self) -> None:
        """Run when a rollout is complete, or was stopped."""
        self._on_rollout_end()

    def on_training_end(self) -> None:
        """Run at the end of `learn`."""
        self._on_training_end()

    def _init_callback(self) -> None:
        """Run once the model is set, before training."""

    def _on_training_start(self) -> None:
        """Run before the first step of `learn`."""

    def _on_rollout_start(self) -> None:
        """Run before a rollout."""

    def _on_step(self) -> bool | None:
        """Run after each step of all environments; return False to stop training."""
        return True

    def _on_rollout_end(self) -> None:
        """Run when a rollout is complete, before the update, or when it was stopped."""

    def _on_training_end(self) -> None:
        """Run after the last step."""


class EventCallback(BaseCallback):
    """Base class of callbacks that call another callback on an event.

    Args:
        callback: The callback to call.
        verbose: Whether to print messages.
    """

    def __init__(self, callback: BaseCallback | None = None, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.callback = callback
        if callback is not None:
            callback.parent = self

    def init_callback(self, model: PPO2) -> None:
        """Store the model before training."""
        super().init_callback(model)
        if self.callback is not None:
            self.callback.init_callback(model)

    def on_training_start(self, locals_: dict[str, Any], globals_: dict[str, Any]) -> None:
        """Run at the start of `learn`."""
        if self.callback is not None:
            self.callback.on_training_start(locals_, globals_)
        super().on_training_start(locals_, globals_)

    def _on_event(self) -> bool | None:
        return self.callback.on_step() if self.callback is not None else True


class CallbackList(BaseCallback):
    """Call several callbacks as one; training stops when any of them returns False.

    Args:
        callbacks: `BaseCallback` objects and functions.
    """

    def __init__(self, callbacks: Sequence[Any]) -> None:
        super().__init__()
        self.callbacks = [as_callback(callback) for callback in callbacks]

    def init_callback(self, model: PPO2) -> None:
        """Store the model before training."""
        super().init_callback(model)
        for callback in self.callbacks:
            callback.init_callback(model)

    def on_training_start(self, locals_: dict[str, Any], globals_: dict[str, Any]) -> None:
        """Run at the start of `learn`."""
        super().on_training_start(locals_, globals_)
        for callback in self.callbacks:
            callback.on_training_start(locals_, globals_)

    def _on_rollout_start(self) -> None:
        for callback in self.callbacks:
            callback.on_rollout_start()

    def _on_step(self) -> bool:
        results = [callback.on_step() for callback in self.callbacks]
        return all(result is not False for result in results)

    def _on_rollout_end(self) -> None:
        for callback in self.callbacks:
            callback.on_rollout_end()

    def _on_training_end(self) -> None:
        for callback in self.callbacks:
            callback.on_training_end()


class CheckpointCallback(BaseCallback):
    """Save the model every `save_freq` calls, as ``<name_prefix>_<steps>_steps.zip``.

    Args:
        save_freq: Calls between two files; one step of all environments is one call.
        save_path: The folder.
        name_prefix: Prefix of the file names.
        verbose: 2 prints the name of each file.
    """

    def __init__(self, save_freq: int, save_path: str | Path, name_prefix: str = "rl_model", verbose: int = 0) -> None:
        super().__init__(verbose)
        self.save_freq = positive_int("save_freq", save_freq)
        self.save_path = os.fspath(save_path)
        self.name_prefix = name_prefix

    def _init_callback(self) -> None:
        Path(self.save_path).mkdir(parents=True, exist_ok=True)

    def _on_step(self) -> bool:
        if self.n_calls % self.save_freq == 0:
            path = Path(self.save_path) / f"{self.name_prefix}_{self.num_timesteps}_steps"
            self.model.save(path)
            if self.verbose > 1:
                print(f"Saving model checkpoint to {path}")
        return True


class EvalCallback(EventCallback):
    """Evaluate the model every `eval_freq` calls, and save the best one.

    The statistics of a `VecNormalize` around the training environments are first copied to the one around `eval_env`.

    Args:
        eval_env: An environment, or a vector environment that holds one.
        callback_on_new_best: Called when an evaluation is the best so far.
        n_eval_episodes: Episodes per evaluation.
        eval_freq: Calls between two evaluations; one step of all environments is one call. 0 or less for none.
        log_path: A folder (for ``evaluations.npz``: timesteps, results, ep_lengths) or None.
        best_model_save_path: A folder (for ``best_model.zip``) or None.
        deterministic: Whether to take the most likely action instead of a sample.
        render: Whether to render the episodes.
        verbose: 1 prints each evaluation.

    Attributes:
        best_mean_reward: Mean return of the best evaluation so far.
        last_mean_reward: Mean return of the newest evaluation.
    """

    def __init__(
        self,
        eval_env: Any,
        callback_on_new_best: BaseCallback | None = None,
        n_eval_episodes: int = 5,
        eval_freq: int = 10_000,
        log_path: str | Path | None = None,
        best_model_save_path: str | Path | None = None,
        deterministic: bool = True,
        render: bool = False,
        verbose: int = 1,
    ) -> None:
        super().__init__(callback_on_new_best, verbose)
        self.n_eval_episodes = positive_int("n_eval_episodes", n_eval_episodes)
        self.eval_freq = positive_int("eval_freq", eval_freq) if eval_freq > 0 else 0
        self.best_mean_reward = -np.inf
        self.last_mean_reward = -np.inf
        self.deterministic = deterministic
        self.render = render
        self.eval_env = single_environment(eval_env)
        self.best_model_save_path = None if best_model_save_path is None else os.fspath(best_model_save_path)
        self.log_path = None if log_path is None else str(Path(log_path) / "evaluations")
        self.evaluations_timesteps: list[int] = []
        self.evaluations_results: list[list[float]] = []
        self.evaluations_length: list[list[int]] = []

    def _on_step(self) -> bool | None:
        if self.eval_freq == 0 or self.n_calls % self.eval_freq != 0:
            return True
        if self.training_env is not None:
            sync_envs_normalization(self.training_env, self.eval_env)
        rewards, lengths = evaluate_policy(
            self.model,
            self.eval_env,
            n_eval_episodes=self.n_eval_episodes,
            render=self.render,
            deterministic=self.deterministic,
            return_episode_rewards=True,
        )
        self._record(rewards, lengths)
        self.last_mean_reward = float(np.mean(rewards))
        if self.verbose > 0:
            print(
                f"Eval num_timesteps={self.num_timesteps}, episode_reward={self.last_mean_reward:.2f} +/- "
                f"{np.std(rewards):.2f}\nEpisode length: {np.mean(lengths):.2f} +/- {np.std(lengths):.2f}"
            )
        if self.last_mean_reward <= self.best_mean_reward:
            return True
        if self.verbose > 0:
            print("New best mean reward!")
        if self.best_model_save_path is not None:
            self.model.save(Path(self.best_model_save_path) / "best_model")
        self.best_mean_reward = self.last_mean_reward
        return self._on_event()

    def _record(self, rewards: list[float], lengths: list[int]) -> None:
        self.evaluations_timesteps.append(self.num_timesteps)
        self.evaluations_results.append(rewards)
        self.evaluations_length.append(lengths)
        if self.log_path is not None:
            Path(self.log_path).parent.mkdir(parents=True, exist_ok=True)
            np.savez(
                self.log_path,
                timesteps=self.evaluations_timesteps,
                results=self.evaluations_results,
                ep_lengths=self.evaluations_length,
            )


class StopTrainingOnRewardThreshold(BaseCallback):
    """Stop training at a mean reward; use it as `callback_on_new_best` of an `EvalCallback`.

    Args:
        reward_threshold: The mean reward at which to stop.
        verbose: 1 prints a message when it stops.
    """

    def __init__(self, reward_threshold: float, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.reward_threshold = reward_threshold

    def _on_step(self) -> bool:
        if not isinstance(self.parent, EvalCallback):
            raise ValueError(
                "StopTrainingOnRewardThreshold: must be part of an EvalCallback, such as "
                "EvalCallback(env, callback_on_new_best=StopTrainingOnRewardThreshold(...))."
            )
        keep_training = bool(self.parent.best_mean_reward < self.reward_threshold)
        if self.verbose > 0 and not keep_training:
            print(
                f"Stopping training because the mean reward {self.parent.best_mean_reward:.2f} is above the threshold "
                f"{self.reward_threshold}"
            )
        return keep_training


class EveryNTimesteps(EventCallback):
    """Call a callback every `n_steps` environment steps.

    Args:
        n_steps: Environment steps between two calls.
        callback: The callback to call.
    """

    def __init__(self, n_steps: int, callback: BaseCallback) -> None:
        super().__init__(callback)
        self.n_steps = positive_int("n_steps", n_steps)
        self.last_time_trigger = 0

    def _on_step(self) -> bool | None:
        if self.num_timesteps - self.last_time_trigger < self.n_steps:
            return True
        self.last_time_trigger = self.num_timesteps
        return self._on_event()


class ConvertCallback(BaseCallback):
    """Turn a function of the local and global variables into a callback.

    Args:
        callback: The function.
        verbose: Whether to print messages.
    """

    def __init__(self, callback: CallbackFunction, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.callback = callback

    def _on_step(self) -> bool | None:
        return self.callback(self.locals, self.globals)


class AdapterCallback(BaseCallback):
    """Turn an object that has some of the five methods into a `BaseCallback`.

    Args:
        callback: The object. Methods of a Minerva `Callback` receive the trainer. Methods of any other object are
            called without arguments, except `on_training_start`, which receives the local and the global variables.
    """

    def __init__(self, callback: Any) -> None:
        super().__init__()
        self.callback = callback
        self._steps_before = 0

    def _on_training_start(self) -> None:
        self._forward("on_training_start", self.locals, self.globals)

    def _on_rollout_start(self) -> None:
        self._forward("on_rollout_start")

    def _on_step(self) -> bool | None:
        result: bool | None = self._forward("on_step")
        return result

    def _on_rollout_end(self) -> None:
        self._forward("on_rollout_end")

    def _on_training_end(self) -> None:
        self._forward("on_training_end")

    def _forward(self, name: str, *args: Any) -> Any:
        if isinstance(self.callback, Callback):
            return getattr(self.callback, name)(self._trainer(name))
        method = getattr(self.callback, name, None)
        return None if method is None else method(*args)

    def _trainer(self, event: str) -> PPO2Trainer:
        """Return the trainer, its counts and last step as a callback of Minerva's own trainers reads them."""
        trainer: PPO2Trainer = self.model.trainer
        if event == "on_training_start":
            self._steps_before = self.model.num_timesteps
        trainer.env_steps = self.model.num_timesteps - self._steps_before
        if event == "on_step":
            rewards, dones = (np.asarray(self.locals[name]) for name in ("rewards", "dones"))
            ended = [(i, info["episode"]) for i, info in enumerate(self.locals["infos"]) if "episode" in info]
            episodes = [Episode(i, float(episode["r"]), int(episode["l"])) for i, episode in ended]
            never = np.zeros_like(dones)
            trainer.last_step = Step(self.locals["obs"], rewards, dones, never, never, episodes)
        return trainer


def as_callback(callback: Any) -> BaseCallback:
    """Return one callback for an object, a function, a list of these, or None.

    Raises:
        ValueError: `callback` is none of these.
    """
    if isinstance(callback, BaseCallback):
        return callback
    if callback is None or isinstance(callback, (list, tuple)):
        return CallbackList(callback or [])
    if hasattr(callback, "on_step"):
        return AdapterCallback(callback)
    if callable(callback):
        return ConvertCallback(callback)
    raise ValueError(
        "callback: must be a BaseCallback, a function (locals, globals), an object with an on_step method, or a list "
        f"of these; got {type(callback).__name__}."
    )


def single_environment(env: Any) -> VecEnv:
    """Return a vector environment that holds exactly one environment, for evaluation.

    Raises:
        ValueError: `env` holds more than one.
    """
    venv = env if isinstance(env, VecEnv) else DummyVecEnv([lambda: env])
    if venv.num_envs != 1:
        raise ValueError(f"eval_env: must hold one environment, got {venv.num_envs}.")
    return venv
