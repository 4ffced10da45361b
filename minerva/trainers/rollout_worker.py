"""A rollout worker: some of a run's environments and a copy of its policy, in a process of their own.

It knows nothing of Ray: `minerva.trainers.rollout_workers` makes actors of this class, and is its counterpart in the
learner's process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import Space
from numpy.typing import NDArray
from torch import Tensor

from minerva.environments import BatchedEnvironment, Episode, Step
from minerva.environments.base import Rows
from minerva.environments.history import without_older_actions
from minerva.storage.rollout import RolloutBuffer
from minerva.trainers.actor import Actor, BaseAgent
from minerva.trainers.collector import RolloutCollector
from minerva.utils.running_norm import RunningNorm
from minerva.utils.seeding import torch_generator_state
from minerva.utils.structure import check, expect, list_of

Weights = Mapping[str, NDArray[Any]]
"""What acting needs of an agent: entries of its `state_dict`, as arrays."""


class Segment(NamedTuple):
    """T steps of n environments, taken with one copy of the policy; arrays are time-major."""

    observations: Rows  # [T, n, O], raw: what each step returned
    actions: NDArray[np.float32]  # [T, n, A], not clipped
    log_probs: NDArray[np.float32]  # [T, n], of the actions; 0 where they are not needed
    rewards: NDArray[np.float64]  # [T, n], raw
    terminated: NDArray[np.bool_]  # [T, n]
    truncated: NDArray[np.bool_]  # [T, n]
    restarting: NDArray[np.bool_]  # [T, n]
    recurrent_state: NDArray[np.float32]  # [n, S], after the last step
    episodes: list[tuple[int, Episode]]  # that ended, with their step from 0, in the order of steps

    @classmethod
    def join(cls, segments: Sequence[Segment]) -> Segment:
        """Put the segments of several workers side by side."""
        *arrays, ends = zip(*(segment[:-1] for segment in segments), strict=True)
        first, episodes = 0, []
        for segment in segments:
            episodes += segment.numbered_from(first).episodes
            first += segment.rewards.shape[1]
        return cls._make([*(np.concatenate(each, 1) for each in arrays), np.concatenate(ends), sorted(episodes)])

    def numbered_from(self, first: int) -> Segment:
        """Return the segment with `first` added to the numbers of its environments."""
        episodes = [(t, one._replace(env_index=first + one.env_index)) for t, one in self.episodes]
        return self._replace(episodes=episodes)

    def rest(self, start: int) -> Segment:
        """Return the steps from `start` on."""
        *arrays, end, episodes = self
        left = [(t - start, episode) for t, episode in episodes if t >= start]
        return Segment._make([*(array[start:] for array in arrays), end, left])

    def steps(self) -> Iterator[Step]:
        """Yield what the environments returned, step by step."""
        episodes: dict[int, list[Episode]] = {}
        for t, episode in self.episodes:
            episodes.setdefault(t, []).append(episode)
        arrays = (self.observations, self.rewards, self.terminated, self.truncated, self.restarting)
        for t, values in enumerate(zip(*arrays, strict=True)):
            yield Step(*values, episodes.get(t, []))

    def to_plain(self) -> dict[str, Any]:
        """Return tensors and plain values, for a checkpoint."""
        arrays: list[NDArray[Any]] = list(self[:-1])
        named = {name: torch.from_numpy(array.copy()) for name, array in zip(self._fields, arrays, strict=False)}
        return {**named, "episodes": [[t, *episode] for t, episode in self.episodes]}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Segment:
        """Return the segment that `to_plain` has described."""
        episodes = [(t, Episode(*rest)) for t, *rest in plain["episodes"]]
        return cls._make([*(plain[name].numpy() for name in cls._fields[:-1]), episodes])


def check_segment(value: Any, name: str, form: Segment, num_envs: int, steps: int | None = None) -> None:
    """Check that a loaded value can become a `Segment`.

    Args:
        value: What was loaded.
        name: Where the value was found.
        form: A segment of one step, of the right sizes.
        num_envs: N, of the run.
        steps: T; any but 0 by default.

    Raises:
        StructureError: It cannot.
    """
    plain = form.to_plain()
    rewards = value.get("rewards") if isinstance(value, dict) else None
    found = len(rewards) if isinstance(rewards, Tensor) and rewards.ndim == 2 else -1
    right = found > 0 if steps is None else found == steps
    expect(right, f"{name}.rewards", f"must have {'some' if steps is None else steps} steps", rewards)
    for field in Segment._fields[:-1]:
        if field != "recurrent_state":
            plain[field] = plain[field].expand(found, *plain[field].shape[1:])

    def check_episodes(episodes: Any, where: str) -> None:
        check(episodes, list_of([0, 0, 0.0, 0]), where)
        inside = all(t < found and i < num_envs for t, i, *_ in episodes)
        expect(inside, where, "must be of the segment's steps and environments", episodes)

    check(value, {**plain, "episodes": check_episodes}, name)


class Description(NamedTuple):
    """What a worker's environments are like; the names are those of `BatchedEnvironment`."""

    raw_observation_space: Space[Any]
    action_space: Space[Any]
    observation_dim: int
    observation_dtype: np.dtype[Any]
    mask_dim: int
    description: str


class Setup(NamedTuple):
    """What a worker needs besides its environments."""

    build_agent: Callable[[], BaseAgent]
    seed: int  # the generator of its action noise is spawned from it
    steps: int  # T, of a segment
    log_probs: bool  # whether those of actions are needed


class RolloutWorker:
    """Take steps in some environments with a copy of the policy, a whole segment at a time.

    `begin` and `collect` return the worker's state as well; another worker that loads it continues with the same bits.

    Args:
        make_env: Makes the environments.
    """

    def __init__(self, make_env: Callable[[], BatchedEnvironment]) -> None:
        torch.set_num_threads(1)  # the workers already run in parallel
        self._make_env = make_env
        self._env: BatchedEnvironment | None = None

    def describe(self) -> Description:
        """Make the environments, unless they are made already, and describe them."""
        return Description(*(getattr(self._environments(), name) for name in Description._fields))

    def _environments(self) -> BatchedEnvironment:
        if self._env is None:  # not in the constructor: what is wrong with them is an answer of a method
            self._env = self._make_env()
        return self._env

    def prepare(self, setup: Setup) -> None:
        """Build what acts."""
        env, agent = self._environments(), setup.build_agent().eval()
        self._agent, self._steps = agent, setup.steps
        self._actor = Actor(agent.policy, setup.seed, setup.log_probs)
        self._rollout = RolloutBuffer(
            setup.steps,
            env.num_envs,
            env.observation_dim,
            agent.policy.head.action_dim,
            torch.device("cpu"),
            agent.state_dim,
            torch.uint8 if env.observation_dtype == np.uint8 and agent.policy.takes_bytes else torch.float32,
        )
        self._log_probs = np.zeros((setup.steps, env.num_envs), np.float32)  # [T, n]
        normalizer = agent.obs_normalizer
        fixed = _FixedNorm(normalizer) if isinstance(normalizer, RunningNorm) else None
        self._collector = RolloutCollector(env, self._rollout, self._act, fixed, None)

    def _act(self, obs: Any, recurrent_state: Any, episode_starts: Any) -> tuple[Any, Any, None]:
        actions, recurrent_state, log_probs = self._actor(obs, recurrent_state, episode_starts)
        if log_probs is not None:
            self._log_probs[self._rollout.position] = log_probs
        return actions, recurrent_state, None

    def begin(self, weights: Weights) -> tuple[Rows, dict[str, Any]]:
        """Start the first episodes of a run; return their raw observations ``[n, O]``, and the state."""
        self._load_weights(weights)
        return self._collector.begin(), self._state_dict()

    def collect(self, weights: Weights) -> tuple[Segment, dict[str, Any]]:
        """Take the steps of a segment with these weights; return it, and the state after it.

        The state lacks the actions of running episodes from before the segment: it stays small however long they are.
        """
        self._load_weights(weights)
        rollout = self._rollout
        steps = [self._collector.step() for _ in range(self._steps)]
        segment = Segment(
            np.stack([step.observations for step in steps]),
            rollout.actions.numpy().copy(),
            self._log_probs.copy(),
            np.stack([step.rewards for step in steps]),
            np.stack([step.terminated for step in steps]),
            np.stack([step.truncated for step in steps]),
            np.stack([step.restarting for step in steps]),
            rollout.recurrent_state.numpy().copy(),
            [(t, episode) for t, step in enumerate(steps) for episode in step.episodes],
        )
        rollout.carry_over()
        state = self._state_dict()
        collector = state["collector"]
        newest = without_older_actions(collector["env"], self._steps)  # the learner has the others
        return segment, {**state, "collector": {**collector, "env": newest}}

    def _load_weights(self, weights: Weights) -> None:
        # What Ray delivers is read-only, which torch warns of where it shares the memory.
        self._agent.load_state_dict({name: torch.tensor(array) for name, array in weights.items()}, strict=False)
        self._actor.invalidate()

    def _state_dict(self) -> dict[str, Any]:
        return {"action_noise": self._actor.generator.get_state(), "collector": self._collector.state_dict()}

    def check_state(self, state: Any, name: str) -> None:
        """Raise a `StructureError` if a loaded state cannot be one of this worker; nothing is changed."""
        generator = torch_generator_state(self._actor.generator)
        check(state, {"action_noise": generator, "collector": self._collector.check_state}, name)

    def load_state_dict(self, state: dict[str, Any]) -> tuple[str | None, NDArray[np.bool_]]:
        """Load a saved state.

        Returns:
            A sentence where that is not exact, and which environments the next step restarts, ``[n]``.
        """
        self._actor.generator.set_state(state["action_noise"])
        return self._collector.load_state_dict(state["collector"]), self._environments().restarts_next


class _FixedNorm:
    """Normalize by statistics that only the learner changes."""

    def __init__(self, norm: RunningNorm) -> None:
        self._norm = norm

    def see(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return an array ``[B, dim + passed]`` normalized."""
        normalized: NDArray[np.float32] = self._norm(torch.from_numpy(x)).numpy()
        return normalized
