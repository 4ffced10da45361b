"""Minerva from Python: train with a preset, and act with a trained policy."""

from __future__ import annotations

import dataclasses
import importlib
import signal
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from minerva import presets
from minerva.trainers.config import DEFAULT_TOTAL_STEPS

if TYPE_CHECKING:
    import numpy as np
    from gymnasium import Space
    from numpy.typing import NDArray
    from torch import nn

    from minerva.callbacks import CallbackLike
    from minerva.environments.ids import EnvFactory, EnvLike
    from minerva.sweeps.expansion import Algorithms
    from minerva.sweeps.sweep import SweepResult
    from minerva.trainers.config import RunConfig
    from minerva.trainers.result import TrainingResult
    from minerva.trainers.trainer import Trainer
    from minerva.tuning.tuner import TuneResult


ALGORITHMS = {"ppo": "PPO", "mpo": "MPO", "vmpo": "VMPO"}
"""What the names of an algorithm's classes begin with: `PPOConfig`, `PPOTrainer`."""


def config_class(algo: str) -> type[RunConfig]:
    """Import an algorithm's config.

    Raises:
        ValueError: There is no such algorithm.
    """
    found: type[RunConfig] = _import(algo, "Config")
    return found


def trainer_class(algo: str) -> type[Trainer]:
    """Import an algorithm's trainer.

    Raises:
        ValueError: There is no such algorithm.
    """
    found: type[Trainer] = _import(algo, "Trainer")
    return found


class Settings(NamedTuple):
    """The settings to train an environment with."""

    fields: dict[str, Any]
    total_steps: int
    notes: tuple[str, ...] = ()  # sentences for the user
    from_preset: bool = False
    tuned_on: str = ""  # seeds with which the settings of a file were chosen

    def tuning_note(self, seed: int) -> str | None:
        """Return the warning for a run with a seed with which its settings were chosen; None for another seed."""
        from minerva.sweeps.seeds import parse_seeds

        if not self.tuned_on or seed not in parse_seeds(self.tuned_on):
            return None
        return (
            f"seed: the settings were chosen on seeds {self.tuned_on}, and {seed} is one of them: its result must not "
            "be reported for these settings. Train with other seeds for that."
        )

    def fitted(self, config: type[RunConfig], given: Mapping[str, Any]) -> Settings:
        """Put what the user gave on top of the preset, and change what else has to change with it.

        Raises:
            ValueError: What the user gave breaks a rule of the config.
        """
        if not self.from_preset:
            return self._replace(fields={**self.fields, **given})
        from minerva.presets.fitting import fit, fit_note
        from minerva.report.groups import SAME_RESULT

        made = config.from_fields(None, self.fields)
        preset = {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}
        changes = fit(preset, given)
        fields = {**self.fields, **given, **changes}
        final = config.from_fields(None, fields)
        own = [name for name in given if name not in SAME_RESULT and getattr(final, name) != preset[name]]
        notes = list(self.notes)
        if own:
            notes[0] += f" Changed here: {', '.join(own)}."
        notes += [note] if (note := fit_note(preset, given, changes)) is not None else []
        return self._replace(fields=fields, notes=tuple(notes))


def preset_settings(
    algo: str,
    env: str | EnvFactory,
    preset: str | Path | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
) -> Settings:
    """Find the settings to train an environment with.

    Args:
        algo: The algorithm.
        env: The environment's id or factory; an empty id stands for no environment in particular.
        preset: As for `train`.
        env_kwargs: Arguments for the environment's constructor, where it has to be made to see its actions.

    Raises:
        ValueError: There is no such algorithm, preset or file, or the environment cannot be made.
    """
    config = config_class(algo)
    if preset == "none":
        return Settings({}, DEFAULT_TOTAL_STEPS)
    env_name = env if isinstance(env, str) else _display_name(env)
    if not isinstance(preset, (str, Path, type(None))):
        raise ValueError(f"preset: must be a name, a file or None, got {type(preset).__name__}.")
    if isinstance(preset, Path) or (preset is not None and preset.endswith(".toml")):
        from minerva.presets.files import read_preset_file

        own_file = read_preset_file(Path(preset), config)
        tuned_on = "" if own_file.tuned is None else own_file.tuned.seeds
        return _settings(own_file, f"Using the settings of {preset}.")._replace(tuned_on=tuned_on)
    own = presets.load_presets(algo).get(env_name)
    if preset == "default" or (preset is None and own is None):
        missing = None if preset == "default" else f"{env_name} has no preset for {algo}"
        return _general_settings(algo, env, env_kwargs, missing) if env else Settings({}, DEFAULT_TOTAL_STEPS)
    if own is not None and preset in (None, env_name):
        return _settings(own, f"Using the preset of {own.name}{own.described()}.")
    found = presets.find_preset(algo, str(preset))
    return _settings(found, f"Using the preset of {found.name} for {env_name}, for which it was not made.")


def _display_name(env: EnvFactory) -> str:
    from minerva.environments.ids import display_name  # imports Gymnasium, which help does not need

    return display_name(env)


def _general_settings(
    algo: str, env: str | EnvFactory, env_kwargs: Mapping[str, Any] | None, missing: str | None
) -> Settings:
    general = presets.load_defaults(algo)
    if not general:
        return Settings({}, DEFAULT_TOTAL_STEPS, (f"{missing or algo}: training with the defaults.",))
    (kind, *others) = general
    if others:  # otherwise the algorithm knows one kind of actions, and refuses the other
        from minerva.presets.action_kind import action_kind

        kind = action_kind(env, env_kwargs if isinstance(env_kwargs, Mapping) else None)  # otherwise the config refuses
    using = "Using" if missing is None else f"{missing}: using"
    return _settings(general[kind], f"{using} the general preset for {kind} actions{general[kind].described()}.")


def _settings(preset: presets.Preset, note: str) -> Settings:
    steps = DEFAULT_TOTAL_STEPS if preset.total_steps is None else preset.total_steps
    return Settings(preset.fields.copy(), steps, (note,), from_preset=True)


def train(
    algo: str,
    env_id: EnvLike,
    total_steps: int | None = None,
    seed: int = 42,
    device: str = "auto",
    out_dir: str | Path | None = None,
    preset: str | Path | None = None,
    callbacks: CallbackLike = None,
    make_encoder: Callable[[], nn.Module] | None = None,
    resume_or_start: bool = False,
    **fields: Any,
) -> TrainingResult:
    """Train a policy with the environment's preset. Unless `console` is False, print the result and where it is.

    Args:
        algo: The algorithm: "ppo", "mpo" or "vmpo".
        env_id: A Gymnasium id, ``dm_control/<domain>/<task>``, a callable that returns a `gymnasium.Env`, or one that
            `gymnasium.make` returned: it is copied from its spec.
        total_steps: Steps of all environments together; by default the preset's.
        seed: Every generator of the run is spawned from it.
        device: "auto", "cpu", "cuda", …
        out_dir: The run's folder; by default a new one under ``runs/``.
        preset: None for the environment's own preset or, without one, the algorithm's general preset. Otherwise the id
            of another environment, "default" for the general preset, "none" for the defaults of the algorithm's config,
            or a TOML file with settings.
        callbacks: A `Callback`, a function of the trainer that is called at every step, or a list of these.
        make_encoder: Builds your own encoder, for PPO and V-MPO: see `PPOTrainer`.
        resume_or_start: Resume the run that `out_dir` holds, if there is one: its algorithm, environment, seed and
            settings must be these, and `total_steps` may be larger. A finished run is returned at once.
        **fields: Fields of the algorithm's config, on top of the preset's. If `num_envs` is given without
            `rollout_steps`, rollouts keep about the size that they have in the preset.

    Returns:
        Where the run is, how far it came, and its first and last evaluation.

    Raises:
        ValueError: An argument breaks a rule; the message says which and what would do.
        EnvironmentFailureError: An environment failed in the middle of the run; what was learned is saved.
        FloatingPointError: Losses are infinite or not a number; the last checkpoint is from before.
    """
    from minerva.environments import source_of

    source, given = source_of(env_id), fields.get("env_kwargs", {})
    if source.kwargs and isinstance(given, Mapping):
        fields["env_kwargs"] = {**source.kwargs, **given}
    settings = preset_settings(algo, source.env, preset, fields.get("env_kwargs")).fitted(config_class(algo), fields)
    config = config_class(algo).from_fields(None, settings.fields)
    extra = {} if make_encoder is None else {"make_encoder": make_encoder}
    steps = settings.total_steps if total_steps is None else total_steps
    found = None
    if resume_or_start:
        from minerva.environments import display_name
        from minerva.trainers.result import TrainingResult
        from minerva.trainers.resuming import find_run

        if out_dir is None:
            raise ValueError("resume_or_start: needs out_dir, the folder of the run; give one.")
        compared = config if make_encoder is None else config_class(algo).from_fields(config, {"encoder": "custom"})
        found = find_run(Path(out_dir), algo, display_name(env_id), seed, compared, steps)
        if found is not None and found.finished:
            return TrainingResult(
                algorithm=algo,
                env_id=display_name(env_id),
                seed=seed,
                out_dir=Path(out_dir),
                env_steps=found.env_steps,
                updates=found.updates,
                first_evaluation=None,
                last_evaluation=None,
                stopped_by=None,
                seconds=found.seconds,
                evaluation_seconds=found.evaluation_seconds,
            )
    trainer = make_trainer(algo, env_id, seed, device, config, **extra)
    try:
        trainer.notes.extend(notes_of(settings, seed))
        if found is not None and out_dir is not None:
            trainer.load(out_dir)
        result = trainer.train(steps, out_dir=out_dir, callbacks=callbacks)
    finally:
        trainer.close()
    if config.console:
        print(f"\n{result.summary()}")
    return result


def algorithms() -> Algorithms:
    """Return what a sweep has to know of the algorithms."""
    from minerva import environments
    from minerva.sweeps.expansion import Algorithms

    return Algorithms(config_class, preset_settings, lambda env_id: environments.resolve(env_id, {}))


def sweep(
    spec: str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    on: Literal["local", "ray"] = "local",
    jobs: int | None = None,
    address: str | None = None,
    retries: int = 2,
    console: bool = True,
) -> SweepResult:
    """Train many runs, each a process of its own: algorithms, environments, seeds and settings.

    A run is started or resumed in its folder ``OUT/ALGO/ENV/VARIANT/seedK``: called again, a sweep trains only what is
    missing. Ctrl-C saves and stops all.

    Args:
        spec: A TOML file, or a mapping of the same form, such as ``{"algorithms": ["ppo"], "envs": ["Pendulum-v1"],
            "seeds": "1-5", "grid": {"policy_lr": [1e-4, 3e-4]}}``.
        out: The sweep's folder; by default ``runs/NAME``.
        on: Where the runs are: "local" for processes of this machine, "ray" for tasks of a Ray cluster.
        jobs: Runs at once; by default as many as there are cores for.
        address: Address of the Ray cluster, HOST:PORT; by default the one that this machine belongs to.
        retries: How often a run is resumed that has failed without getting further.
        console: Show how far the sweep has come.

    Returns:
        The state of each run, with its last evaluation; a failed run does not stop the others.

    Raises:
        ValueError: The specification or an argument is wrong, or another sweep runs in the folder.
    """
    from minerva.sweeps.launch import prepare
    from minerva.sweeps.spec import read_spec

    result = prepare(read_spec(spec), algorithms(), out, on, jobs, address, retries, console).run()
    _raise_signal(result.stopped_by)
    return result


def tune(
    spec: str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    on: Literal["local", "ray"] = "local",
    jobs: int | None = None,
    address: str | None = None,
    retries: int = 2,
    console: bool = True,
) -> TuneResult:
    """Search for the settings of an algorithm on an environment with Optuna.

    The runs of a trial, one for each seed, are in ``OUT/trials/NNNN/seedK``, and the trials in ``OUT/journal.log``.
    Called again, also after the process was killed, a tuning takes up the trials that were running, with the same
    settings.

    Args:
        spec: A TOML file, or a mapping of the same form, such as ``{"algorithms": ["ppo"], "envs": ["Pendulum-v1"],
            "seeds": "1-3", "search": {"policy_lr": {"low": 1e-5, "high": 1e-2, "log": True}}}``.
        out: The tuning's folder; by default ``runs/NAME``.
        on: Where the runs are: "local" for processes of this machine, "ray" for tasks of a Ray cluster.
        jobs: Runs at once; by default as many as there are cores for.
        address: Address of the Ray cluster, HOST:PORT; by default the one that this machine belongs to.
        retries: How often a run is resumed that has failed without getting further.
        console: Show how far the tuning has come.

    Returns:
        The trials, the best of them, and the file with its settings for `preset` of `train`.

    Raises:
        ValueError: The specification or an argument is wrong, another process tunes in the folder, or Optuna is not
            installed.
    """
    from minerva.tuning.launch import prepare

    result = prepare(spec, algorithms(), out, on, jobs, address, retries, console).tune()
    _raise_signal(result.stopped_by)
    return result


def _raise_signal(number: int | None) -> None:
    """End as a process does that a signal has stopped."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    if number is not None:
        raise SystemExit(128 + number)


def notes_of(settings: Settings, seed: int) -> list[str]:
    """Return what a run with a preset's settings and a seed is told at its start."""
    from minerva.trainers.run_folder import ImportantNote

    warning = settings.tuning_note(seed)
    return [*settings.notes, *([] if warning is None else [ImportantNote(warning)])]


def make_trainer(algo: str, env_id: EnvLike, seed: int, device: str, config: RunConfig, **extra: Any) -> Trainer:
    """Make the trainer of an algorithm."""
    make: Callable[..., Trainer] = trainer_class(algo)  # an algorithm's own constructor has defaults besides
    return make(env_id, seed, device, config, **extra)


def load(
    path: str | Path,
    device: str = "cpu",
    which: Literal["last", "best"] = "last",
    make_encoder: Callable[[], nn.Module] | None = None,
) -> Policy:
    """Load a trained policy to act with. No environment is needed.

    Args:
        path: A checkpoint, or a run's folder.
        device: "cpu", "cuda", "auto", …
        which: The checkpoint of a run's folder: the last one, or the one with the best evaluation. Where it is damaged,
            the other is taken, with a warning.
        make_encoder: Builds the encoder, if the policy was trained with one of your own.

    Raises:
        CheckpointError: There is none, or none that can be read.
        ValueError: It was trained with an encoder of your own, and `make_encoder` was not given.
    """
    from minerva import checkpointing

    if which not in ("last", "best"):
        raise ValueError(f"which: must be 'last' or 'best', got {which!r}.")
    found = checkpointing.look_up(Path(path), which)
    if found.note is not None:
        warnings.warn(found.note, RuntimeWarning, stacklevel=2)
    return Policy(found.path, found.checkpoint, device, make_encoder)


class Policy:
    """A trained policy with its observation normalizer, read from a checkpoint.

    A recurrent policy remembers what it was shown: call `reset` before each episode.

    Args:
        path: Where the checkpoint was read from.
        checkpoint: What `minerva.checkpointing.read` gave.
        device: Where the networks run.
        make_encoder: Builds the encoder, if the policy was trained with one of the user's own.

    Attributes:
        algorithm: The algorithm that trained it.
        env_id: The environment that it was trained on.
        env_steps: The environment steps that it was trained for.
        seed: The run's seed.
        config: The run's config.
        observation_space: Of the environment, before flattening.
        action_space: Of the environment.
    """

    def __init__(
        self,
        path: Path,
        checkpoint: Mapping[str, Any],
        device: str = "cpu",
        make_encoder: Callable[[], nn.Module] | None = None,
    ) -> None:
        import numpy as np

        from minerva.environments.spaces import flat_size, row_dtype
        from minerva.trainers.actor import ActingPolicy, Shapes
        from minerva.trainers.saved import SavedRun
        from minerva.utils.devices import resolve_device
        from minerva.utils.precision import exact_cudnn
        from minerva.utils.seeding import initialization_seed, torch_generator

        self.path = path
        self.algorithm: str = checkpoint["algorithm"]
        saved = SavedRun.read(path, dict(checkpoint), config_class(self.algorithm))
        self.env_id: str = saved.env_id
        self.seed: int = saved.seed
        self.env_steps: int = saved.run.env_steps
        self.config = saved.config
        self.observation_space: Space[Any] = saved.observation_space
        self.action_space: Space[Any] = saved.action_space
        self._device = resolve_device(device)
        self._mask_dim = saved.mask_dim
        obs_dim = flat_size(self.observation_space) + self._mask_dim
        shapes = Shapes(self.observation_space, self.action_space, obs_dim, self._mask_dim, make_encoder)
        # The user's own encoder may hold what is not saved; torch's global generator stays as it is.
        limited = saved.limited() if make_encoder is None else nullcontext()
        with initialization_seed(self.seed), limited:
            agent = trainer_class(self.algorithm).build_agent(self.config, shapes, self._device).eval()
        with saved.explained():
            agent.check_state(saved.weights, "state.agent")
        agent.load_state_dict(saved.weights)
        self._row_dtype = row_dtype(self.observation_space) if agent.policy.takes_bytes else np.dtype(np.float32)
        self._precision = exact_cudnn
        self._act = ActingPolicy(agent, torch_generator(self.seed, "policy", self._device))

    def __repr__(self) -> str:
        trained = f"{self.algorithm} on {self.env_id} after {self.env_steps:,} steps, seed {self.seed}"
        spaces = f"{_in_short(self.observation_space)} -> {_in_short(self.action_space)}"
        return f"Policy({trained}: {spaces}; {self.path})"

    def reset(self) -> None:
        """Reset the recurrent state: an episode begins, or a batch of them. Other policies have none."""
        self._act.reset()

    def act(self, obs: Any, deterministic: bool = True, action_mask: Any = None) -> NDArray[Any]:
        """Choose actions for raw observations.

        Args:
            obs: An observation as the environment gives it (an array, or a dict or tuple of them), or a batch: every
                array with one more dimension in front.
            deterministic: Take the policy's most likely action (the mean of a Gaussian), or sample.
            action_mask: Which actions are allowed, ``[K]`` or ``[B, K]``, for a policy that was trained with masks;
                None for all of them.

        Returns:
            An action within the action space, in its shape and dtype; for a batch ``[B, ...]``.

        Raises:
            ValueError: The observation is not one of the observation space, or the mask does not fit.
        """
        from minerva.environments.base import clip_to_box
        from minerva.environments.spaces import action_converter, rows_of

        rows, single = rows_of(self.observation_space, obs)
        rows = self._with_mask(rows, action_mask)
        space = self.action_space
        actions = action_converter(space)(clip_to_box(self.act_flat(rows, deterministic), space))
        return actions[0] if single else actions

    def act_flat(self, observations: NDArray[Any], deterministic: bool = True) -> NDArray[np.float32]:
        """Choose unclipped actions ``[B, A]`` for raw observations that are rows already, ``[B, O]``."""
        with self._precision(self._device):
            return self._act(observations.astype(self._row_dtype, copy=False), deterministic)

    def _with_mask(self, rows: NDArray[np.float32], action_mask: Any) -> NDArray[np.float32]:
        import numpy as np

        if action_mask is None:
            if not self._mask_dim:
                return rows
            mask = np.ones((len(rows), self._mask_dim), dtype=np.float32)
        else:
            from minerva.environments.spaces import category_counts, mask_rows

            mask = mask_rows(action_mask)
            if self._mask_dim == 0 or mask.shape != (len(rows), self._mask_dim):
                trained = f"({len(rows)}, {self._mask_dim})" if self._mask_dim else "no mask at all"
                raise ValueError(
                    f"action_mask: this policy takes {trained}, got an array of shape {np.shape(action_mask)}."
                )
            start = 0
            for i, count in enumerate(category_counts(self.action_space)):
                if not mask[:, start : start + count].any(axis=1).all():
                    raise ValueError(
                        f"action_mask: must allow at least one category of each entry of the action, got none of "
                        f"entry {i}."
                    )
                start += count
        return np.concatenate([rows, mask], axis=1)


def _in_short(space: Space[Any]) -> str:
    """Return a space's type with its shape, its categories, or the number of its parts."""
    sizes: Any = getattr(space, "nvec", getattr(space, "n", getattr(space, "spaces", None)))
    if isinstance(sizes, (dict, tuple, list)):
        sizes = f"{len(sizes)} parts"
    elif hasattr(sizes, "tolist"):
        sizes = sizes.tolist()
    return f"{type(space).__name__}({space.shape if sizes is None else sizes})".replace("((", "(").replace("))", ")")


def _import(algo: str, part: str) -> Any:
    if algo not in ALGORITHMS:
        raise ValueError(f"algo: must be {' or '.join(ALGORITHMS)}, got {algo!r}.")
    # Nothing is imported before it is used: help needs the configs, but not torch.
    return getattr(importlib.import_module(f"minerva.trainers.{algo}.{part.lower()}"), ALGORITHMS[algo] + part)
