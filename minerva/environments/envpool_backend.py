"""The EnvPool backend: C++ environments stepped by threads; fast, but it cannot save a running episode."""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from minerva.environments.base import (
    EnvironmentFailureError,
    EpisodeStatistics,
    Rows,
    Step,
    box_bounds,
    check_finite,
    is_of_another_backend,
)
from minerva.environments.ids import ATARI_PREFIX, DM_CONTROL_PREFIX, EnvFactory, resolve
from minerva.environments.spaces import flat_size, row_dtype
from minerva.utils.cores import usable_cores
from minerva.utils.seeding import spawn_generators
from minerva.utils.structure import check

MUJOCO = re.compile(
    r"(Ant|HalfCheetah|Hopper|Humanoid|HumanoidStandup|InvertedDoublePendulum|InvertedPendulum|Pusher|Reacher|Swimmer"
    r"|Walker2d)-v[45]"
)
CLASSIC_CONTROL = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1")
ATARI_OPTIONS = ("mode", "difficulty", "full_action_space", "repeat_action_probability")
UNSUPPORTED_OPTIONS = ("xml_file",)  # EnvPool finds only its own models

# EnvPool 1.2 includes MuJoCo 3.6, where contacts of two capsules differ from later versions. All other tasks of the
# suite that could be compared from the same state agree, including contacts with a floor.
DIFFERENT_CONTACTS = "dm_control/finger/"

SEED_LIMIT = 2**31  # C++ int


def unsupported_reason(env: str | EnvFactory, env_kwargs: Mapping[str, Any] | None = None) -> str | None:
    """Return why EnvPool cannot run an environment, or None if it can."""
    if not isinstance(env, str):
        return "EnvPool cannot run environments from your own function"
    if importlib.util.find_spec("envpool") is None:
        return 'EnvPool is not installed: pip install "minerva-rl[envpool]"'
    name = pool_name(env)
    if name is None:
        return f"EnvPool does not support {env}"
    if env.startswith(DIFFERENT_CONTACTS):
        return f"EnvPool's {name} is a different task from {env}: its older MuJoCo has different finger contacts"
    unknown = [key for key in env_kwargs or {} if key not in _options(env, name)]
    if unknown:
        return f"EnvPool's {name} does not accept {', '.join(unknown)} (in env_kwargs)"
    return None


def pool_name(env: str) -> str | None:
    """Return EnvPool's name of a task, or None: ``dm_control/cheetah/run`` is its ``CheetahRun-v1``."""
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
        return set(ATARI_OPTIONS)
    import envpool

    return set(envpool.make_spec(name).config._fields) - set(UNSUPPORTED_OPTIONS)


def make_pool_batch(
    env: str | EnvFactory,
    num_envs: int,
    seed: int,
    threads: int | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    allow_non_finite: bool = False,
    place: tuple[int, int] | None = None,
) -> EnvPoolBatch:
    """Build a batch of EnvPool environments with the same spaces as the Gymnasium backend.

    Args:
        env: A Gymnasium id of a MuJoCo (v4, v5), classic control or Atari task, or ``dm_control/<domain>/<task>``.
        num_envs: N.
        seed: The pool's seed is spawned from it.
        threads: Threads of the pool (default: one per core, at most one per environment).
        env_kwargs: Those of the Gymnasium environment that EnvPool also accepts.
        allow_non_finite: Pass on values that are not finite instead of raising an error.
        place: Number of the first of these environments, and how many the whole run has (default: these).

    Raises:
        ValueError: EnvPool does not support the environment.
    """
    reason = unsupported_reason(env, env_kwargs)
    if reason is not None:
        raise ValueError(f"backend: {reason}; use backend gymnasium, or auto for EnvPool where it is available.")
    import envpool

    assert isinstance(env, str)
    name, kwargs = str(pool_name(env)), dict(env_kwargs or {})
    # Gymnasium's spaces: a policy is saved with them and evaluated in Gymnasium. This also checks the arguments.
    template = resolve(env, kwargs, training=True)()
    observation_space, action_space = template.observation_space, template.action_space
    template.close()
    if env.startswith(ATARI_PREFIX):
        kwargs.update(episodic_life=True, reward_clip=True)
    threads = min(threads or usable_cores(), num_envs)

    def make_pool(seed: int) -> Any:
        pool = envpool.make(name, env_type="gymnasium", num_envs=num_envs, num_threads=threads, seed=seed, **kwargs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about bounds that float32 cannot represent, at the first access
            _ = pool.observation_space
        return pool

    description = f"EnvPool, {num_envs} environment{'s' * (num_envs > 1)}, {threads} thread{'s' * (threads > 1)}"
    return EnvPoolBatch(
        make_pool, num_envs, observation_space, action_space, seed, description, allow_non_finite, place
    )


class EnvPoolBatch:
    """N EnvPool environments; EnvPool's autoreset is NEXT_STEP already.

    EnvPool can neither seed nor replay a single environment. A resumed run starts new episodes with another seed; with
    the first seed, it would repeat the episodes of the start of the run.

    Args:
        make_pool: A function from a seed to a pool with EnvPool's Gymnasium interface.
        num_envs: N.
        observation_space: Of one environment; a row holds the parts of a Dict in its order.
        action_space: Of one environment.
        seed: The run's seed.
        description: One line that names the backend.
        allow_non_finite: Pass on values that are not finite instead of raising an error.
        place: Number of the first of these environments, and how many the whole run has (default: these).
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
        place: tuple[int, int] | None = None,
    ) -> None:
        self._first, self._total = place or (0, num_envs)
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
        self._generation = 0  # number of resumes of this run
        self._pool: Any = make_pool(self._pool_seed())
        self._action_shape = (num_envs, *(action_space.shape or ()))
        self._low, self._high = box_bounds(action_space)
        self._ended = np.ones(num_envs, dtype=np.bool_)  # the next step restarts these
        self._life_lost = np.zeros(num_envs, dtype=np.bool_)  # the subset whose game continues
        self._needs_reset = True

    def reset(self) -> Rows:
        """Start an episode in every environment and return the first observations, ``[N, O]``."""
        self._needs_reset = True
        self.statistics = EpisodeStatistics(self.num_envs)
        return self._restart().observations

    @property
    def restarts_next(self) -> NDArray[np.bool_]:
        """Return which environments the next step restarts, ``[N]``."""
        return np.ones_like(self._ended) if self._needs_reset else self._ended.copy()

    def step(self, actions: NDArray[np.float32]) -> Step:
        """Step every environment; one whose episode has ended restarts instead."""
        if self._needs_reset:
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
        else:  # an Atari game, whose rewards are clipped and whose lives are episodes
            self._life_lost = terminated & (info["terminated"] == 0)
            episodes = self.statistics.add(info["reward"], ended ^ self._life_lost, restarting)
        return Step(rows, rewards, terminated, truncated, restarting, episodes)

    def _restart(self) -> Step:
        observation, _ = self._pool.reset()
        self._needs_reset = False
        n = self.num_envs
        self._ended, self._life_lost = np.zeros((2, n), dtype=np.bool_)
        neither = np.zeros(n, dtype=np.bool_)
        rows, rewards = self._rows(observation), np.zeros(n)
        if not self._allow_non_finite:
            check_finite(rows, rewards)
        return Step(rows, rewards, neither, neither.copy(), np.ones(n, dtype=np.bool_), [])

    def _rows(self, observation: Any) -> Rows:
        # EnvPool returns new arrays at every step, so no copy is needed.
        if not isinstance(self.raw_observation_space, spaces.Dict):
            rows = np.asarray(observation.reshape(self.num_envs, -1), dtype=self.observation_dtype)
        else:
            parts = [observation[key].reshape(self.num_envs, -1) for key in self.raw_observation_space.spaces]
            rows = np.concatenate(parts, axis=1, dtype=self.observation_dtype)
        if rows.shape[1] != self.observation_dim:
            raise EnvironmentFailureError(
                f"EnvPool's observations must have the {self.observation_dim} numbers of {self.raw_observation_space}, "
                f"got {rows.shape[1]}"
            )
        return rows

    def state_dict(self) -> dict[str, Any]:
        """Return the number of resumes, the only state of a pool that can be saved."""
        return {"generation": self._generation}

    def check_state(self, state: Any, name: str) -> None:
        """Check that a loaded state has the form of this batch's; another backend's holds nothing that is used."""
        if not is_of_another_backend(state, "generation"):
            check(state, self.state_dict(), name)

    def load_state_dict(self, state: dict[str, Any]) -> str | None:
        """Start new episodes with the next step, for a state of any backend."""
        self.close()
        self._generation = state.get("generation", 0) + 1
        self._pool = self._make_pool(self._pool_seed())
        self.statistics = EpisodeStatistics(self.num_envs)
        self._needs_reset = True
        return (
            "EnvPool cannot resume a saved episode: new ones start here, so this run is not bit for bit the "
            "uninterrupted one (with backend gymnasium it is)"
        )

    def close(self) -> None:
        """Stop the pool's threads."""
        self._pool = None  # its destructor ends them

    def _pool_seed(self) -> int:
        # EnvPool seeds environment i with seed + i.
        generators = spawn_generators(self._seed, "environments", self._generation + 1)
        return int(generators[-1].integers(SEED_LIMIT - self._total)) + self._first
