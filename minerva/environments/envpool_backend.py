"""The EnvPool backend: environments written in C++, stepped by threads; fast, but it cannot save a running episode."""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from minerva.environments.base import EpisodeStatistics, Rows, Step, box_bounds, check_finite
from minerva.environments.ids import ATARI_PREFIX, DM_CONTROL_PREFIX, EnvFactory, resolve
from minerva.environments.spaces import flat_size, row_dtype
from minerva.utils.cores import usable_cores

MUJOCO = re.compile(
    r"(Ant|HalfCheetah|Hopper|Humanoid|HumanoidStandup|InvertedDoublePendulum|InvertedPendulum|Pusher|Reacher|Swimmer"
    r"|Walker2d)-v[45]"
)
CLASSIC_CONTROL = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1")
OF_THE_GAME = ("mode", "difficulty", "full_action_space", "repeat_action_probability")
NOT_OF_THE_TASK = ("xml_file",)  # the pool finds its own models alone

# EnvPool 1.2 carries MuJoCo 3.6, where two capsules touch otherwise than in later ones. All other tasks of the suite
# that could be put into the same state step alike, contacts with a floor included.
OTHER_CONTACTS = "dm_control/finger/"

SEED_LIMIT = 2**31  # of C++'s int


def why_not(env: str | EnvFactory, env_kwargs: Mapping[str, Any] | None = None) -> str | None:
    """Say why the pool cannot serve an environment; None if it can."""
    if not isinstance(env, str):
        return "EnvPool has no environments that are made by a function of yours"
    if importlib.util.find_spec("envpool") is None:
        return 'EnvPool is not installed: pip install "minerva-rl[envpool]"'
    name = pool_name(env)
    if name is None:
        return f"EnvPool does not serve {env}"
    if env.startswith(OTHER_CONTACTS):
        return f"EnvPool's {name} is another task than {env}: its older MuJoCo lets the finger slip otherwise"
    unknown = [key for key in env_kwargs or {} if key not in _options(env, name)]
    if unknown:
        return f"EnvPool's {name} does not know {', '.join(unknown)} (of env_kwargs)"
    return None


def pool_name(env: str) -> str | None:
    """Give the pool's own name for a task that it has: ``dm_control/cheetah/run`` is its ``CheetahRun-v1``."""
    if env.startswith(DM_CONTROL_PREFIX):
        parts = env.removeprefix(DM_CONTROL_PREFIX).replace("/", "_").split("_")
        name = "".join(part[:1].upper() + part[1:] for part in parts) + "-v1"
    elif env.startswith(ATARI_PREFIX):
        name = env.removeprefix(ATARI_PREFIX)
    elif env in CLASSIC_CONTROL or MUJOCO.fullmatch(env):
        name = env
    else:
        return None
    import envpool

    return name if name in envpool.list_all_envs() else None


def _options(env: str, name: str) -> set[str]:
    if env.startswith(ATARI_PREFIX):
        return set(OF_THE_GAME)
    import envpool

    return set(envpool.make_spec(name).config._fields) - set(NOT_OF_THE_TASK)


def make_pool_batch(
    env: str | EnvFactory,
    num_envs: int,
    seed: int,
    threads: int | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    allow_non_finite: bool = False,
) -> EnvPoolBatch:
    """Make a batch of environments of the pool, which takes and gives what the Gymnasium backend would.

    Args:
        env: A Gymnasium id of a MuJoCo (v4, v5), classic control or Atari task, or ``dm_control/<domain>/<task>``.
        num_envs: N.
        seed: Environment i is seeded with ``seed + i``.
        threads: Of the pool; None for one a core, and never more than environments.
        env_kwargs: As the Gymnasium environment takes them, where the pool knows them too.
        allow_non_finite: Hand on what is not a finite number, in place of failing over it.

    Raises:
        ValueError: The pool cannot serve it.
    """
    reason = why_not(env, env_kwargs)
    if reason is not None:
        raise ValueError(f"backend: {reason}. Use backend gymnasium, or auto to have the pool where it can be had.")
    import envpool

    assert isinstance(env, str)
    name, kwargs = str(pool_name(env)), dict(env_kwargs or {})
    # The spaces of Gymnasium's own: a policy is saved with them, and evaluated there. This also checks the arguments.
    model = resolve(env, kwargs, training=True)()
    observation_space, action_space = model.observation_space, model.action_space
    model.close()
    if env.startswith(ATARI_PREFIX):
        kwargs.update(episodic_life=True, reward_clip=True)
    threads = min(threads or usable_cores(), num_envs)

    def make_pool(seed: int) -> Any:
        pool = envpool.make(name, env_type="gymnasium", num_envs=num_envs, num_threads=threads, seed=seed, **kwargs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of bounds that float32 cannot hold: once, when it is first asked
            _ = pool.observation_space
        return pool

    description = f"EnvPool, {num_envs} environment{'s' * (num_envs > 1)}, {threads} thread{'s' * (threads > 1)}"
    return EnvPoolBatch(make_pool, num_envs, observation_space, action_space, seed, description, allow_non_finite)


class EnvPoolBatch:
    """N environments of a pool, whose own autoreset is the one that is promised here.

    A pool can neither seed nor replay a single environment. A resumed run starts fresh episodes, of another seed than
    the first ones were: they would be those that the run has seen before.

    Args:
        make_pool: From a seed to the pool, an object of EnvPool's Gymnasium interface.
        num_envs: N.
        observation_space: Of one environment; the parts of a Dict stand in a row in its order.
        action_space: Of one environment.
        seed: The run's seed.
        description: One line that says what runs.
        allow_non_finite: Hand on what is not a finite number, in place of failing over it.
    """

    def __init__(
        self,
        make_pool: Callable[[int], Any],
        num_envs: int,
        observation_space: Space[Any],
        action_space: Space[Any],
        seed: int,
        description: str,
        allow_non_finite: bool = False,
    ) -> None:
        self.num_envs = num_envs
        self.raw_observation_space = observation_space
        self.action_space = action_space
        self.observation_dim = flat_size(observation_space)
        self.observation_dtype = row_dtype(observation_space)
        self.mask_dim = 0
        self.description = description
        self.statistics = EpisodeStatistics(num_envs)
        self._allow_non_finite = allow_non_finite
        self._make_pool = make_pool
        self._seed = seed
        self._generation = 0  # how often this run was resumed
        self._pool: Any = make_pool(self._pool_seed())
        self._action_shape = (num_envs, *(action_space.shape or ()))
        self._low, self._high = box_bounds(action_space)
        self._ended = np.ones(num_envs, dtype=np.bool_)  # the next step restarts these
        self._goes_on = np.zeros(num_envs, dtype=np.bool_)  # … and of these, the games of these go on
        self._stopped = True  # the pool waits for a reset

    def reset(self) -> Rows:
        """Start an episode everywhere and return the first observations, ``[N, O]``."""
        self._stopped = True
        self.statistics = EpisodeStatistics(self.num_envs)
        return self._restart().observations

    @property
    def restarts_next(self) -> NDArray[np.bool_]:
        """Which environments the next step takes into a new episode, ``[N]``."""
        return np.ones_like(self._ended) if self._stopped else self._ended.copy()

    def step(self, actions: NDArray[np.float32]) -> Step:
        """Step everywhere; an environment whose episode has ended restarts instead."""
        if self._stopped:
            return self._restart()
        actions = np.minimum(np.maximum(actions, self._low), self._high)
        observation, pool_rewards, terminated, truncated, info = self._pool.step(actions.reshape(self._action_shape))
        rows, rewards = self._rows(observation), pool_rewards.astype(np.float64)
        if not self._allow_non_finite:
            check_finite(rows, rewards)
        restarting = self._ended
        self._ended = ended = terminated | truncated
        if "lives" not in info:
            episodes = self.statistics.add(rewards, ended, restarting)
        else:  # a game, whose rewards are clipped and whose lives are episodes
            self._goes_on = terminated & (info["terminated"] == 0)
            episodes = self.statistics.add(info["reward"], ended ^ self._goes_on, restarting)
        return Step(rows, rewards, terminated, truncated, restarting, episodes)

    def _restart(self) -> Step:
        observation, _ = self._pool.reset()
        self._stopped = False
        n = self.num_envs
        self._ended, self._goes_on = np.zeros((2, n), dtype=np.bool_)
        neither = np.zeros(n, dtype=np.bool_)
        rows, rewards = self._rows(observation), np.zeros(n)
        if not self._allow_non_finite:
            check_finite(rows, rewards)
        return Step(rows, rewards, neither, neither.copy(), np.ones(n, dtype=np.bool_), [])

    def _rows(self, observation: Any) -> Rows:
        # The arrays are new ones at every step: what needs no other type is handed on as it is.
        if not isinstance(self.raw_observation_space, spaces.Dict):
            return np.asarray(observation.reshape(self.num_envs, -1), dtype=self.observation_dtype)
        rows = np.empty((self.num_envs, self.observation_dim), dtype=self.observation_dtype)
        start = 0
        for key in self.raw_observation_space.spaces:
            part = observation[key].reshape(self.num_envs, -1)
            rows[:, start : start + part.shape[1]] = part
            start += part.shape[1]
        return rows

    def state_dict(self) -> dict[str, Any]:
        """Give all that a pool has to say of itself."""
        return {"generation": self._generation}

    def load_state_dict(self, state: dict[str, Any]) -> str | None:
        """Start fresh episodes with the next step, whichever backend the state is from."""
        self.close()
        self._generation = state.get("generation", 0) + 1
        self._pool = self._make_pool(self._pool_seed())
        self.statistics = EpisodeStatistics(self.num_envs)
        self._stopped = True
        return (
            "EnvPool cannot go on with a saved episode: fresh ones start here, so this run is not bit for bit what it "
            "would have been (with backend gymnasium it is)"
        )

    def close(self) -> None:
        """Stop the pool's threads."""
        self._pool = None  # they end with it

    def _pool_seed(self) -> int:
        if self._generation == 0 and self._seed + self.num_envs < SEED_LIMIT:
            return self._seed
        # EnvPool gives environment i the seed + i.
        return int(np.random.default_rng([self._seed, self._generation]).integers(SEED_LIMIT - self.num_envs))
