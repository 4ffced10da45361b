"""Minerva from Python: train with a preset, and act with what was trained."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from minerva import presets
from minerva.trainers.config import DEFAULT_TOTAL_STEPS

if TYPE_CHECKING:
    import numpy as np
    import torch
    from gymnasium import Space
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from minerva.callbacks import CallbackLike
    from minerva.environments.ids import EnvFactory
    from minerva.trainers.config import RunConfig
    from minerva.trainers.run import TrainingResult
    from minerva.trainers.trainer import Trainer

NO_PRESET = "none"
"""The preset's name that stands for the config's defaults."""

Act = Callable[["Tensor", bool, "torch.Generator"], "Tensor"]
"""From raw, flat observations ``[B, O]`` to unclipped actions ``[B, A]``; the flag is for deterministic ones."""


class Algorithm(NamedTuple):
    """Where an algorithm's parts are; nothing is imported before it is used."""

    config: str  # the config class, as "module.name"
    trainer: str  # the trainer class, likewise
    networks: Callable[[Any, int, int], tuple[nn.Module, Act]]  # from config, O, A to what a checkpoint's agent holds


def _ppo_networks(config: Any, obs_dim: int, act_dim: int) -> tuple[nn.Module, Act]:
    from minerva.trainers.ppo.agent import Agent

    agent = Agent(obs_dim, act_dim, config.policy_layer_sizes, config.critic_layer_sizes, config.normalize_obs)
    return agent, agent.choose


def _mpo_networks(config: Any, obs_dim: int, act_dim: int) -> tuple[nn.Module, Act]:
    from minerva.trainers.mpo.agent import MPOAgent

    agent = MPOAgent(obs_dim, act_dim, -1.0, 1.0, config=config)  # the true bounds come with the checkpoint
    return agent, agent.choose


def _vmpo_networks(config: Any, obs_dim: int, act_dim: int) -> tuple[nn.Module, Act]:
    from minerva.trainers.vmpo.agent import VMPOAgent

    agent = VMPOAgent(obs_dim, act_dim, -1.0, 1.0, config=config)  # the true bounds come with the checkpoint
    return agent, agent.choose


ALGORITHMS = {
    "ppo": Algorithm("minerva.trainers.ppo.config.PPOConfig", "minerva.trainers.ppo.trainer.PPOTrainer", _ppo_networks),
    "mpo": Algorithm("minerva.trainers.mpo.config.MPOConfig", "minerva.trainers.mpo.trainer.MPOTrainer", _mpo_networks),
    "vmpo": Algorithm(
        "minerva.trainers.vmpo.config.VMPOConfig", "minerva.trainers.vmpo.trainer.VMPOTrainer", _vmpo_networks
    ),
}


def config_class(algo: str) -> type[RunConfig]:
    """Import an algorithm's config.

    Raises:
        ValueError: There is no such algorithm.
    """
    found: type[RunConfig] = _import(_algorithm(algo).config)
    return found


def trainer_class(algo: str) -> type[Trainer]:
    """Import an algorithm's trainer.

    Raises:
        ValueError: There is no such algorithm.
    """
    found: type[Trainer] = _import(_algorithm(algo).trainer)
    return found


class Settings(NamedTuple):
    """What a preset says of a run."""

    fields: dict[str, Any]
    total_steps: int
    note: str | None  # a sentence for the user


def preset_settings(algo: str, env_name: str, preset: str | None = None) -> Settings:
    """Find the settings to train an environment with.

    Args:
        algo: The algorithm.
        env_name: The environment's id.
        preset: None for the environment's own preset, if it has one; a name for that one; "none" for the defaults.

    Raises:
        ValueError: There is no such algorithm, or no preset of that name.
    """
    _algorithm(algo)
    if preset == NO_PRESET:
        return Settings({}, DEFAULT_TOTAL_STEPS, None)
    if preset is None and env_name not in presets.load_presets(algo):
        return Settings({}, DEFAULT_TOTAL_STEPS, f"{env_name} has no preset for {algo}: training with the defaults.")
    fields = presets.find_preset(algo, env_name if preset is None else preset).copy()
    return Settings(
        fields, fields.pop("total_steps", DEFAULT_TOTAL_STEPS), f"Using the preset of {preset or env_name}."
    )


def train(
    algo: str,
    env_id: str | EnvFactory,
    total_steps: int | None = None,
    seed: int = 42,
    device: str = "auto",
    out_dir: str | Path | None = None,
    preset: str | None = None,
    callbacks: CallbackLike = None,
    **fields: Any,
) -> TrainingResult:
    """Train a policy with the environment's preset.

    Args:
        algo: The algorithm: "ppo", "mpo" or "vmpo".
        env_id: A Gymnasium id, ``dm_control/<domain>/<task>``, or a callable that returns a `gymnasium.Env`.
        total_steps: Steps of all environments together; by default the preset's.
        seed: Every generator of the run is spawned from it.
        device: "auto", "cpu", "cuda", …
        out_dir: The run's folder; by default a new one under ``runs/``.
        preset: None for the environment's own preset, if it has one; a name for that one; "none" for the defaults.
        callbacks: A `Callback`, a function of the trainer that is called at every step, or a list of these.
        **fields: Fields of the algorithm's config, on top of the preset's.

    Returns:
        Where the run is, how far it came, and its first and last evaluation.

    Raises:
        ValueError: An argument breaks a rule; the message says which and what would do.
        EnvironmentFailureError: An environment failed in the middle of the run; what was learned is saved.
        FloatingPointError: The losses are no longer numbers; the last checkpoint is from before.
    """
    settings = preset_settings(algo, env_id if isinstance(env_id, str) else _name(env_id), preset)
    config = config_class(algo).from_fields(None, {**settings.fields, **fields})
    trainer = make_trainer(algo, env_id, seed, device, config)
    try:
        if settings.note is not None:
            trainer.notes.append(settings.note)
        steps = settings.total_steps if total_steps is None else total_steps
        return trainer.train(steps, out_dir=out_dir, callbacks=callbacks)
    finally:
        trainer.close()


def make_trainer(algo: str, env_id: str | EnvFactory, seed: int, device: str, config: RunConfig) -> Trainer:
    """Make the trainer of an algorithm."""
    make: Callable[..., Trainer] = trainer_class(algo)  # an algorithm's own constructor has defaults besides
    return make(env_id, seed, device, config)


def load(path: str | Path, device: str = "cpu", which: Literal["last", "best"] = "last") -> Policy:
    """Load a trained policy to act with. No environment is needed.

    Args:
        path: A checkpoint, or a run's folder.
        device: "cpu", "cuda", "auto", …
        which: The checkpoint of a run's folder: the last one, or the one with the best evaluation. Where it is damaged,
            the other is taken, with a warning.

    Raises:
        CheckpointError: There is none, or none that can be read.
    """
    from minerva import checkpointing

    if which not in ("last", "best"):
        raise ValueError(f"which: must be 'last' or 'best', got {which!r}.")
    found = checkpointing.look_up(Path(path), which)
    if found.note is not None:
        warnings.warn(found.note, RuntimeWarning, stacklevel=2)
    return Policy(found.path, found.checkpoint, device)


class Policy:
    """A trained policy with its observation normaliser, read from a checkpoint.

    Args:
        path: Where the checkpoint was read from.
        checkpoint: What `minerva.checkpointing.read` gave.
        device: Where the networks run.

    Attributes:
        algorithm: The algorithm that trained it.
        env_id: The environment that it was trained on.
        env_steps: The environment steps that it was trained for.
        seed: The run's seed.
        config: The run's config.
        observation_space: Of the environment, before flattening.
        action_space: Of the environment.
    """

    def __init__(self, path: Path, checkpoint: Mapping[str, Any], device: str = "cpu") -> None:
        from minerva.environments.spaces import flat_size, space_from_plain
        from minerva.trainers.trainer import resolve_device
        from minerva.utils.seeding import torch_generator

        self.path = path
        self.algorithm: str = checkpoint["algorithm"]
        self.env_id: str = checkpoint["env_id"]
        self.seed: int = checkpoint["seed"]
        self.env_steps: int = checkpoint["state"]["env_steps"]
        self.config = config_class(self.algorithm).from_fields(None, checkpoint["config"])
        self.observation_space: Space[Any] = space_from_plain(checkpoint["observation_space"])
        self.action_space: Space[Any] = space_from_plain(checkpoint["action_space"])
        self._device = resolve_device(device)
        action_dim = len(checkpoint["action_space"]["low"])
        make_networks = _algorithm(self.algorithm).networks
        networks, self._act = make_networks(self.config, flat_size(self.observation_space), action_dim)
        networks.load_state_dict(checkpoint["state"]["agent"])
        networks.to(self._device).eval()
        self._generator = torch_generator(self.seed, "policy", self._device)

    def act(self, obs: Any, deterministic: bool = True) -> NDArray[Any]:
        """Choose actions for raw observations.

        Args:
            obs: An observation as the environment gives it (an array, or a dict or tuple of them), or a batch: every
                array with one more dimension in front.
            deterministic: The policy's mean, or a sample of it.

        Returns:
            An action within the action space, in its shape and dtype; for a batch ``[B, ...]``.

        Raises:
            ValueError: The observation is not one of the observation space.
        """
        from minerva.environments.base import clip_to_box

        rows, single = _flatten(self.observation_space, obs, "observation")
        space = self.action_space
        actions = clip_to_box(self.act_flat(rows, deterministic), space).astype(space.dtype)
        actions = actions.reshape(len(rows), *(space.shape or ()))
        return actions[0] if single else actions

    def act_flat(self, observations: NDArray[np.float32], deterministic: bool = True) -> NDArray[np.float32]:
        """Choose unclipped actions ``[B, A]`` for raw observations that are flat already, ``[B, O]``."""
        import torch

        with torch.no_grad():
            obs = torch.from_numpy(observations).to(self._device)
            actions: NDArray[np.float32] = self._act(obs, deterministic, self._generator).cpu().numpy()
            return actions


def _flatten(space: Space[Any], obs: Any, name: str) -> tuple[NDArray[np.float32], bool]:
    """Turn an observation, or a batch of them, into rows ``[B, O]``; True for a single one."""
    import numpy as np
    from gymnasium import spaces

    from minerva.environments.spaces import flat_size, flat_writer

    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        keys: list[Any] = list(space.spaces) if isinstance(space, spaces.Dict) else list(range(len(space.spaces)))
        kinds = Mapping if isinstance(space, spaces.Dict) else (tuple, list)
        if not isinstance(obs, kinds) or (set(obs) != set(keys) if isinstance(obs, Mapping) else len(obs) != len(keys)):
            raise ValueError(f"{name}: must be a {type(space).__name__.lower()} with {keys}, got {_describe(obs)}.")
        parts = [_flatten(space[key], obs[key], f"{name}[{key!r}]") for key in keys]
        if len({(len(rows), single) for rows, single in parts}) != 1:
            raise ValueError(f"{name}: its parts are batches of different sizes: {[len(rows) for rows, _ in parts]}.")
        return np.concatenate([rows for rows, _ in parts], axis=1), parts[0][1]
    values, shape = np.asarray(obs), tuple(space.shape or ())
    single = values.shape == shape
    if not single and (values.ndim != len(shape) + 1 or values.shape[1:] != shape):
        expected = ", ".join(str(size) for size in shape)
        raise ValueError(
            f"{name}: must have the shape ({expected}), or (B{', ' * bool(shape)}{expected}) for a batch; "
            f"got {_describe(obs)}."
        )
    values = values[None] if single else values
    rows = np.zeros((len(values), flat_size(space)), dtype=np.float32)
    if isinstance(space, spaces.Box):
        rows[:] = values.reshape(len(values), -1)
    else:
        write = flat_writer(space)
        for value, row in zip(values, rows, strict=True):
            write(value, row)
    return rows, single


def _describe(obs: Any) -> str:
    if isinstance(obs, Mapping):
        return f"a dict with {sorted(map(str, obs))}"
    shape = getattr(obs, "shape", None)
    return f"a {type(obs).__name__}" if shape is None else f"an array of shape {tuple(shape)}"


def _algorithm(name: str) -> Algorithm:
    if name not in ALGORITHMS:
        raise ValueError(f"algo: must be {' or '.join(ALGORITHMS)}, got {name!r}.")
    return ALGORITHMS[name]


def _import(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _name(env: EnvFactory) -> str:
    from minerva.environments import display_name

    return display_name(env)
