"""Collecting experience: act, step, normalize, store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minerva.environments import BatchedEnvironment, RewardNormalizer, Step
from minerva.environments.base import Rows
from minerva.storage.replay import ReplayBuffer
from minerva.storage.rollout import RolloutBuffer
from minerva.utils.ranks import ALONE, Ranks
from minerva.utils.running_norm import FrozenNorm, RunningNorm
from minerva.utils.structure import Check, anything, check, expect, optional

Act = Callable[[Any, Any, Any], tuple[Any, Any, Any]]
"""How to act, as `minerva.trainers.actor.Actor`: from normalized observations, recurrent states and where episodes
begin to actions, the states after them, and log-probabilities or None."""


class ObsNormalizer(Protocol):
    """What a collector needs of an observation normalizer."""

    def see(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Take in an array ``[B, O]`` and return it normalized."""
        ...


class RolloutCollector:
    """Fill a rollout buffer, one step of all environments at a time.

    Args:
        env: The environments.
        rollout: The buffer.
        actor: How to act.
        obs_normalizer: Takes in every observation once and normalizes it: a `RunningNorm` with the statistics of that
            moment, a `FrozenNorm`, which several processes need, with those from before the rollout.
        reward_normalizer: The same for rewards, restarting steps left out, of the environments of all processes. It
            runs when the rollout is full; until then the buffer holds raw rewards.
        ranks: The processes that collect a rollout together, each of its own environments.
    """

    def __init__(
        self,
        env: BatchedEnvironment,
        rollout: RolloutBuffer,
        actor: Act,
        obs_normalizer: ObsNormalizer | None,
        reward_normalizer: RewardNormalizer | None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.env = env
        self.rollout = rollout
        self.actor = actor
        self._ranks = ranks
        self._merges = ranks.count > 1  # rewards are normalized in `merge`
        self._own = slice(ranks.rank * env.num_envs, (ranks.rank + 1) * env.num_envs)  # of all environments
        self._frozen = obs_normalizer if isinstance(obs_normalizer, FrozenNorm) else None
        self._obs_normalizer = obs_normalizer
        self._reward_normalizer = reward_normalizer
        self._on_gpu = rollout.obs.device.type != "cpu"
        self._chosen: tuple[Any, Any] | None = None  # actions and recurrent state, until their step has succeeded
        self._staging: Tensor | None = None  # page-locked memory, from which a GPU copies by itself

    def begin(self) -> Rows:
        """Start the first episodes of a run; return their raw observations, ``[N, O]``."""
        self._chosen = None
        observations = self.env.reset()
        self.rollout.begin(torch.as_tensor(self._normalize(observations)))
        return observations

    def wait(self, stopping: Callable[[], bool]) -> bool:
        """Return whether a step can be taken; a collector that waits for other processes stops where it should."""
        return True

    def step(self) -> Step:
        """Step all environments once. If one of them fails, nothing is stored but the actions, for the next attempt."""
        rollout = self.rollout
        if self._chosen is None:
            self._chosen = self.actor(*rollout.current())[:2]
        actions, recurrent_state = self._chosen
        step = self.env.step(actions.cpu().numpy() if self._on_gpu else actions)
        self._chosen = None
        rollout.add(
            actions,
            self._normalize(step.observations),
            step.rewards,
            step.terminated,
            step.truncated,
            step.restarting,
            recurrent_state,
        )
        if rollout.full and self._reward_normalizer is not None and not self._merges:
            self._normalize_rewards(self._reward_normalizer)
        return step

    def merge(self) -> None:
        """Bring the normalizers up to date with the full rollouts of all processes; where one collects, they are.

        Not in `step`: there, another process may fail and not come.
        """
        if self._frozen is not None:
            for moments in self._ranks.gather(self._frozen.take()):
                self._frozen.norm.merge(moments)
        if self._reward_normalizer is not None and self._merges:
            carried = self._reward_normalizer.discounted_return
            carried.copy_(self._ranks.whole(carried[self._own]))
            self._normalize_rewards(self._reward_normalizer)

    def _normalize_rewards(self, normalizer: RewardNormalizer) -> None:
        rollout = self.rollout
        parts = torch.stack([rollout.rewards, rollout.terminated + rollout.truncated, rollout.restarting])  # [3, T, N]
        rewards, ended, restarting = torch.cat(self._ranks.gather(parts), dim=-1).double().numpy()
        normalized = normalizer.normalize_all(rewards, ended > 0, restarting > 0)
        rollout.rewards.copy_(torch.from_numpy(normalized[:, self._own]))

    def _normalize(self, observations: NDArray[Any]) -> Any:
        if self._obs_normalizer is not None:
            observations = self._obs_normalizer.see(observations)
        if not self._on_gpu:
            return observations
        obs = torch.from_numpy(observations)
        if self._staging is None:
            self._staging = torch.empty_like(obs, dtype=self.rollout.obs.dtype, pin_memory=True)
        # What was staged before has arrived: the actions that answer it have come back.
        return self._staging.copy_(obs).to(self.rollout.obs.device, non_blocking=True)

    def state_dict(self) -> dict[str, Any]:
        """Return environments, the partial rollout and the reward normalizer (the other one is the agent's)."""
        normalizer = self._reward_normalizer
        unmerged = {} if self._frozen is None else {"unmerged": self._frozen.moments.clone()}
        return {
            "env": self.env.state_dict(),
            "chosen": None if self._chosen is None else [torch.as_tensor(part).clone().cpu() for part in self._chosen],
            "rollout": self.rollout.state_dict(),
            "reward_normalizer": None if normalizer is None else normalizer.state_dict(),
            **unmerged,
        }

    def check_state(self, state: Any, name: str) -> None:
        """Raise a `StructureError` if a loaded state cannot be one of this collector; nothing is changed."""
        rollout = self.rollout
        chosen = optional([rollout.actions[0], rollout.recurrent_state])
        parts = {"env": self.env.check_state, "rollout": rollout.check_state, "chosen": chosen}
        check(state, {**self.state_dict(), **parts, **self._own_checks(state)}, name)

    def _own_checks(self, state: Any) -> dict[str, Check]:
        """Return checks of what a kind of collector adds to the state; they run after the others."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> str | None:
        """Load a saved state; return a sentence where the environments could not restore theirs exactly."""
        self._load_rollout(state)
        chosen = state["chosen"]
        device = self.rollout.obs.device
        self._chosen = None
        if chosen is not None:
            actions, recurrent_state = (part.to(device) if self._on_gpu else part.numpy() for part in chosen)
            self._chosen = actions, recurrent_state
        if self._reward_normalizer is not None:
            self._reward_normalizer.load_state_dict(state["reward_normalizer"])
        if self._frozen is not None:
            self._frozen.moments = state["unmerged"].clone()
        note = self.env.load_state_dict(state["env"])
        self._truncate_lost_episodes()
        return note

    def _load_rollout(self, state: dict[str, Any]) -> None:
        self.rollout.load_state_dict(state["rollout"])

    @property
    def _collected(self) -> int:
        """Steps of the rollout that the environments have taken."""
        return self.rollout.position

    def check_reward_statistics(self, state: Any, name: str) -> None:
        """Check the reward normalizer in another collector's state, which may be one of more environments."""
        expect(isinstance(state, dict) and "reward_normalizer" in state, name, "must hold a reward_normalizer", state)
        saved, normalizer = state["reward_normalizer"], self._reward_normalizer
        if normalizer is not None and saved is not None:
            check(saved, {**normalizer.state_dict(), "discounted_return": anything}, f"{name}.reward_normalizer")

    def load_reward_statistics(self, saved: Mapping[str, Tensor] | None) -> None:
        """Load the statistics of another run's reward normalizer, which set the scale that its critic has learned."""
        normalizer = self._reward_normalizer
        if normalizer is not None and saved is not None:
            normalizer.load_state_dict({**saved, "discounted_return": normalizer.discounted_return})

    def _truncate_lost_episodes(self) -> None:
        """Mark the newest step as truncated in environments that could not restore their episodes."""
        rollout, collected = self.rollout, self._collected
        fresh = torch.from_numpy(self.env.restarts_next)
        if collected > 0:
            t = collected - 1
            rollout.truncated[t, fresh & (rollout.terminated[t] == 0)] = 1
        up_to_date = collected == 0 or (rollout.full and not self._merges)
        if self._reward_normalizer is not None and up_to_date:
            self._reward_normalizer.discounted_return[self._own][fresh] = 0


class ReplayCollector:
    """Fill a replay buffer with raw observations, one step of all environments at a time.

    Args:
        env: The environments.
        replay: The buffer.
        actor: How to act; it returns raw actions and their log-probabilities.
        obs_normalizer: Takes in every observation once.

    Attributes:
        transitions: Usable transitions collected so far, including those that the buffer no longer holds.
    """

    def __init__(
        self, env: BatchedEnvironment, replay: ReplayBuffer, actor: Act, obs_normalizer: RunningNorm | None
    ) -> None:
        self.env = env
        self.replay = replay
        self.transitions = 0
        self.actor = actor
        self._obs_normalizer = obs_normalizer
        self._chosen: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None  # for the next step
        self._not_recurrent = np.zeros((env.num_envs, 0), np.float32)

    def begin(self) -> None:
        """Start the first episodes of a run."""
        self._chosen = None
        self.replay.begin(self._take_in(self.env.reset()))

    def wait(self, stopping: Callable[[], bool]) -> bool:
        """Return whether a step can be taken; a collector that waits for other processes stops where it should."""
        return True

    def act(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Choose the next step's actions with the policy as it is now, unless they are chosen already."""
        if self._chosen is None:
            obs = self.replay.current_obs
            if self._obs_normalizer is not None:
                obs = self._obs_normalizer(torch.from_numpy(obs)).numpy()
            actions, _, log_probs = self.actor(obs, self._not_recurrent, self._not_recurrent)
            self._chosen = actions, log_probs
        return self._chosen

    def step(self) -> Step:
        """Step all environments once. If one of them fails, nothing is stored."""
        actions, log_probs = self.act()
        step = self.env.step(actions)
        self._chosen = None
        self._take_in(step.observations)
        self._add(actions, step, log_probs)
        return step

    def _add(self, actions: NDArray[np.float32], step: Step, log_probs: NDArray[np.float32]) -> None:
        self.transitions += self.replay.add(
            actions,
            step.observations,
            step.rewards,
            step.terminated,
            step.truncated,
            step.restarting,
            None if self.replay.log_probs is None else log_probs,
        )

    def _take_in(self, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        if self._obs_normalizer is not None:
            self._obs_normalizer.update(observations[np.isfinite(observations).all(axis=1)])
        return observations

    def state_dict(self) -> dict[str, Any]:
        """Return environments, counter and current observations (buffer and normalizer are saved elsewhere)."""
        return {
            "env": self.env.state_dict(),
            "transitions": self.transitions,
            "current_obs": torch.from_numpy(self.replay.current_obs.copy()),
            "chosen": None if self._chosen is None else [torch.from_numpy(part.copy()) for part in self._chosen],
        }

    def check_state(self, state: Any, name: str) -> None:
        """Raise a `StructureError` if a loaded state cannot be one of this collector; nothing is changed."""
        replay = self.replay
        chosen = optional([torch.from_numpy(replay.actions[0]), torch.from_numpy(replay.rewards[0])])
        check(state, {**self.state_dict(), "env": self.env.check_state, "chosen": chosen, **self._own_checks()}, name)

    def _own_checks(self) -> dict[str, Check]:
        """Return checks of what a kind of collector adds to the state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> str | None:
        """Load a saved state; return a sentence where the environments could not restore theirs exactly."""
        self.transitions = state["transitions"]
        self._current_obs = state["current_obs"].numpy()
        chosen = state["chosen"]
        self._chosen = None if chosen is None else (chosen[0].numpy(), chosen[1].numpy())
        return self.env.load_state_dict(state["env"])

    def restart_with_empty_replay(self) -> None:
        """Continue from the loaded state with a replay buffer that was not saved."""
        self.replay.clear()
        self.replay.begin(self._current_obs)
