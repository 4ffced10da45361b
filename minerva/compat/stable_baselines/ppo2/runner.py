"""How PPO2 collects a rollout."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from minerva.compat.stable_baselines.common.runners import AbstractEnvRunner
from minerva.compat.stable_baselines.common.vec_env.base_vec_env import VecEnv, VecEnvWrapper
from minerva.compat.stable_baselines.ppo2.acting import exchange_halves
from minerva.environments.base import check_finite
from minerva.environments.spaces import action_converter, row_dtype, rows_of
from minerva.storage.rollout import RolloutBuffer

if TYPE_CHECKING:
    from minerva.compat.stable_baselines.ppo2.trainer import PPO2Trainer

Array = NDArray[Any]
_LAZY = ("values", "neglogpacs")


class StepVariables(dict[str, Any]):
    """The variables that callbacks receive; values and log-probabilities are computed when they are first read."""

    evaluate: Callable[[], tuple[Array, Array]] | None = None

    def begin_step(self, evaluate: Callable[[], tuple[Array, Array]]) -> None:
        """Drop the values of the last step.

        Args:
            evaluate: Computes the values and the negative log-probabilities of this step.
        """
        for name in _LAZY:
            self.pop(name, None)
        self.evaluate = evaluate

    def __missing__(self, name: str) -> Any:
        if name not in _LAZY or self.evaluate is None:
            raise KeyError(name)
        self.update(zip(_LAZY, self.evaluate(), strict=True))
        return self[name]

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (name in _LAZY and self.evaluate is not None)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a variable, or `default`."""
        return self[name] if name in self else default  # noqa: SIM401 - which would be this method


class TimeLimit(NamedTuple):
    """An episode that ended at a time limit."""

    t: int  # the step of the rollout
    i: int  # the environment
    row: Array  # [O], its last observation
    recurrent_state: Tensor  # [S], before that observation; [0] of a policy that is not recurrent


class Runner(AbstractEnvRunner):
    """Collect rollouts with PPO2's policy. Attributes that it does not have are those of the model.

    Args:
        env: The environments; they are reset.
        model: The model.
        n_steps: Steps per environment and rollout.
    """

    def __init__(self, *, env: VecEnv, model: Any, n_steps: int) -> None:
        super().__init__(env=env, model=model, n_steps=n_steps)
        self.variables = StepVariables()
        self._to_actions = action_converter(env.action_space)
        self._box = env.action_space if isinstance(env.action_space, spaces.Box) else None
        self._bootstraps = _terminal_observations_fit(env)

    @property
    def states(self) -> Any:
        """The recurrent state before `obs`, ``[N, S]``, or None."""
        states: Array = exchange_halves(torch.as_tensor(self._recurrent_state)).cpu().numpy()
        return states if states.size else None

    @states.setter
    def states(self, states: Any) -> None:
        given = np.zeros((self.n_envs, 0), np.float32) if states is None else np.asarray(states, np.float32)
        self._recurrent_state: Any = exchange_halves(torch.from_numpy(given))

    def __getattr__(self, name: str) -> Any:
        if name == "model":  # before it is set
            raise AttributeError(name)
        return getattr(self.model, name)

    def _run(self) -> RolloutBuffer | None:
        """Return the rollout, or None if a callback stopped it."""
        model, env, callback = self.model, self.env, self.callback
        trainer: PPO2Trainer = model.get_trainer()
        rollout, actor = trainer.rollout, trainer.actor
        self.n_steps = rollout.steps
        on_gpu = rollout.obs.device.type != "cpu"
        first_obs = self._as_tensor(self._rows(self.obs), rollout)
        rollout.begin(first_obs, torch.as_tensor(self.dones), torch.as_tensor(self._recurrent_state))
        never = np.zeros(self.n_envs, dtype=np.bool_)
        limits: list[TimeLimit] = []
        for t in range(rollout.steps):
            stored, states, _ = actor(*rollout.current())
            actions = self._to_actions(stored.cpu().numpy() if on_gpu else stored)
            clipped_actions = actions
            if self._box is not None:
                clipped_actions = np.minimum(np.maximum(actions, self._box.low), self._box.high)
            self.obs, rewards, dones, infos = env.step(clipped_actions)
            numbers, self.dones = self._check(rewards, dones, infos)
            rows = self._rows(self.obs)
            check_finite(rows, numbers)
            self._recurrent_state = states
            model.num_timesteps += self.n_envs
            episodes = [info["episode"] for info in infos if "episode" in info]
            if episodes:
                model.episodes_done(episodes)
            if callback is not None:
                self.variables.begin_step(partial(trainer.evaluate, stored))
                callback.update_locals(
                    {
                        "self": self,
                        "actions": actions,
                        "clipped_actions": clipped_actions,
                        "obs": self.obs,
                        "rewards": rewards,
                        "dones": self.dones,
                        "infos": infos,
                        "n_steps": t + 1,
                    }
                )
                if callback.on_step() is False:
                    self.continue_training = False
                    return None
            rollout.add(
                stored,
                self._as_tensor(rows, rollout) if on_gpu else rows,
                numbers,
                self.dones,
                never,
                never,
                states,
                self.dones,
            )
            if self._bootstraps and True in self.dones.tolist():
                limits += self._time_limits(t, infos, states)
        if limits:
            self._bootstrap(trainer, limits)
        return rollout

    def _rows(self, obs: Any) -> Array:
        """Flatten observations to rows ``[N, O]``, action masks at their ends."""
        space, n = self.env.observation_space, self.n_envs
        if isinstance(space, spaces.Box):
            values = np.asarray(obs)
            if values.shape != (n, *space.shape):
                raise ValueError(f"env: observations must have the shape {(n, *space.shape)}, got {values.shape}.")
            rows: Array = values.astype(row_dtype(space), copy=False).reshape(n, -1)
        else:
            rows = rows_of(space, obs)[0]
        if self.model.mask_dim == 0:
            return rows
        masks: Any = self.env
        return np.concatenate([rows, masks.action_masks()], axis=1)

    def _check(self, rewards: Any, dones: Any, infos: Any) -> tuple[Array, Array]:
        numbers, ended = np.asarray(rewards, dtype=np.float64), np.asarray(dones, dtype=np.bool_)
        n = self.n_envs
        for name, shape in (("rewards", numbers.shape), ("dones", ended.shape), ("infos", (len(infos),))):
            if shape != (n,):
                raise ValueError(f"env: step must return {n} {name}, one per environment, got the shape {shape}.")
        return numbers, ended

    def _as_tensor(self, rows: Array, rollout: RolloutBuffer) -> Tensor:
        return torch.as_tensor(rows).to(rollout.obs.device)

    def _time_limits(self, t: int, infos: Any, states: Any) -> list[TimeLimit]:
        """Return the episodes that a time limit ended at step t and whose last observation is known."""
        found = []
        for i in np.flatnonzero(self.dones).tolist():
            if infos[i].get("TimeLimit.truncated", False) and "terminal_observation" in infos[i]:
                row = rows_of(self.env.observation_space, infos[i]["terminal_observation"], "terminal_observation")[0][
                    0
                ]
                row = np.concatenate([row, np.ones(self.model.mask_dim, row.dtype)])
                found.append(TimeLimit(t, i, row, torch.as_tensor(states[i])))
        return found

    def _bootstrap(self, trainer: PPO2Trainer, limits: list[TimeLimit]) -> None:
        """Add the discounted value of the last observation to the reward of a step at which a time limit came."""
        rows = np.stack([limit.row for limit in limits])
        values = trainer.values(rows, torch.stack([limit.recurrent_state for limit in limits])).cpu()
        steps, indices = [limit.t for limit in limits], [limit.i for limit in limits]
        trainer.rollout.rewards[steps, indices] += trainer.config.gamma * values


def _terminal_observations_fit(env: VecEnv) -> bool:
    """Return whether all wrappers change the last observation of an episode, in the infos, as they change others."""
    while isinstance(env, VecEnvWrapper):
        if not env.handles_terminal_observation:
            return False
        env = env.venv
    return True


def swap_and_flatten(arr: Array) -> Array:
    """Turn an array ``[T, N, ...]`` into rows ``[N * T, ...]``, one environment after the other."""
    return arr.swapaxes(0, 1).reshape(arr.shape[0] * arr.shape[1], *arr.shape[2:])
