"""From a specification to run folders with stable names, and to the command that starts or resumes each."""

from __future__ import annotations

import hashlib
import json
import typing
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from minerva.sweeps.spec import LONGEST_NAME, Spec
from minerva.trainers.config import FREE_FIELDS
from minerva.utils.fields import python_value

if typing.TYPE_CHECKING:
    from minerva.trainers.config import RunConfig


class Algorithms(NamedTuple):
    """What a sweep has to know of the algorithms; `minerva.api` provides it."""

    config_class: Callable[[str], type[RunConfig]]
    """Returns the config of an algorithm."""
    preset_settings: Callable[[str, str, str | None, dict[str, Any] | None], Any]
    """Returns what a preset says, given algorithm, environment, the preset's name and the environment's arguments."""
    check_env: Callable[[str], Any]
    """Raises a `ValueError` where there is no such environment."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run of a sweep."""

    folder: str
    """Relative to the sweep's folder."""
    algorithm: str
    env: str
    variant: str
    seed: int
    total_steps: int
    """Environment steps at which it ends, as asked for."""
    final_step: int
    """The step at which it really ends: it consists of whole rollouts."""
    settings: dict[str, Any]
    """Its settings that are not the algorithm's defaults, but for those that change no result; as plain values."""
    words: tuple[str, ...]
    """The command without the folder: arguments of `minerva`."""

    def to_plain(self) -> dict[str, Any]:
        """Return what tells the run apart, for the plan that the sweep's folder holds."""
        names = ("folder", "algorithm", "env", "variant", "seed", "total_steps", "settings")
        return {name: getattr(self, name) for name in names}


def expand(spec: Spec, algorithms: Algorithms, flat: bool = False) -> list[PlannedRun]:
    """Return the runs of a specification: all of the first seed first.

    Args:
        spec: The specification.
        algorithms: The algorithms.
        flat: Name the folders by the seed alone, for one algorithm, environment and variant.

    Raises:
        SpecError: An algorithm, an environment, a preset or a setting is wrong; the message names the line.
    """
    for algorithm in spec.algorithms:
        try:
            algorithms.config_class(algorithm)
        except ValueError as error:
            raise spec.error(("algorithms",), str(error)) from error
    cells = [cell for algorithm in spec.algorithms for cell in _cells(spec, algorithm, algorithms)]
    runs = [
        PlannedRun(
            folder=f"seed{seed}" if flat else f"{cell.folder}/seed{seed}",
            algorithm=cell.algorithm,
            env=cell.env,
            variant=cell.variant,
            seed=seed,
            total_steps=cell.total_steps,
            final_step=cell.final_step,
            settings=cell.settings,
            words=(*cell.words, "--seed", str(seed)),
        )
        for seed in spec.seeds
        for cell in cells
    ]
    if len({run.folder for run in runs}) < len(runs):
        folders = [run.folder for run in runs]
        twice = next(folder for k, folder in enumerate(folders) if folder in folders[:k])
        raise spec.error((), f"spec: each run must have a folder of its own, got {twice} twice; rename a variant.")
    return runs


class _Cell(NamedTuple):
    """What the seeds of one algorithm, environment and variant have in common."""

    folder: str
    algorithm: str
    env: str
    variant: str
    total_steps: int
    final_step: int
    settings: dict[str, Any]
    words: tuple[str, ...]


def _cells(spec: Spec, algorithm: str, algorithms: Algorithms) -> list[_Cell]:
    config_class = algorithms.config_class(algorithm)
    defaults = config_class().to_plain()
    hints = typing.get_type_hints(config_class)
    common = spec.settings_of(algorithm)
    cells = []
    for env in spec.envs:
        try:
            algorithms.check_env(env)
        except ValueError as error:
            raise spec.error(("envs",), str(error)) from error
        presets: dict[str, Any] = {}
        for variant in spec.variants_of(algorithm):
            places = {**common.places, **variant.places}
            fields = {
                name: python_value(value, hints.get(name))
                for name, value in {**common.fields, **variant.fields}.items()
            }
            env_kwargs = fields.get("env_kwargs")
            key = repr(env_kwargs)
            try:
                if key not in presets:
                    presets[key] = algorithms.preset_settings(algorithm, env, spec.preset, env_kwargs)
                    _warn_of_tuned_seeds(presets[key], spec.seeds)
            except ValueError as error:
                raise spec.error(("preset",), str(error)) from error
            total_steps = presets[key].total_steps if spec.total_steps is None else spec.total_steps
            try:
                config = config_class.from_fields(None, presets[key].fitted(config_class, fields).fields)
                config.check_length(total_steps)
            except ValueError as error:
                name = str(error).partition(":")[0]
                if isinstance(fields.get(name), dict) and name not in hints:
                    listed = ", ".join(spec.algorithms)
                    message = f"{name}: is a table, but {name} is not one of the sweep's algorithms ({listed})."
                    raise spec.error(places[name], message) from error
                raise spec.error(places.get(name, (name,)), f"{error}{_whose(name, algorithm, env, fields)}") from error
            settings = {
                name: value
                for name, value in config.to_plain().items()
                if value != defaults[name] and name not in FREE_FIELDS
            }
            name = variant.name or _variant_name({name: fields[name] for name in variant.fields})
            cells.append(
                _Cell(
                    folder="/".join((algorithm, env.replace("/", "-").replace(":", "-"), name)),
                    algorithm=algorithm,
                    env=env,
                    variant=name,
                    total_steps=total_steps,
                    final_step=config.final_step(total_steps),
                    settings=settings,
                    words=tuple(_words(spec, algorithm, env, total_steps, fields, hints)),
                )
            )
    return cells


def _whose(name: str, algorithm: str, env: str, fields: dict[str, Any]) -> str:
    """Say for which runs a rule is broken where the specification does not have the field."""
    return "" if name in fields else f" (For {algorithm} on {env}.)"


def _warn_of_tuned_seeds(settings: Any, seeds: Sequence[int]) -> None:
    warned = [seed for seed in seeds if settings.tuning_note(seed) is not None]
    if warned:
        warnings.warn(settings.tuning_note(warned[0]), RuntimeWarning, stacklevel=2)


def _variant_name(fields: dict[str, Any]) -> str:
    """Return the name of a grid's combination: its sorted pairs, or a hash where that is long."""
    if not fields:
        return "default"
    name = ",".join(f"{key}={_plain_text(fields[key])}" for key in sorted(fields))
    if len(name) <= LONGEST_NAME and "/" not in name:
        return name
    exact = json.dumps(fields, sort_keys=True)
    return hashlib.sha256(exact.encode()).hexdigest()[:16]


def _plain_text(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return "-".join(map(_plain_text, value))
    if isinstance(value, dict):
        return "-".join(f"{key}-{_plain_text(part)}" for key, part in sorted(value.items()))
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _words(
    spec: Spec, algorithm: str, env: str, total_steps: int, fields: dict[str, Any], hints: dict[str, Any]
) -> list[str]:
    """Return the arguments of `minerva` that start a run with these settings."""
    words = ["train", algorithm, f"--env={env}", "--total-steps", str(total_steps), f"--device={spec.device}"]
    words += [f"--preset={spec.preset}"] if spec.preset is not None else []
    words += [f"--init-from={spec.init_from}"] if spec.init_from is not None else []
    for name, value in fields.items():
        flag = f"--{name.replace('_', '-')}"
        if hints[name] is bool:
            words.append(flag if value else flag.replace("--", "--no-", 1))
        elif isinstance(value, tuple):
            words += [flag, *map(str, value)]
        elif isinstance(value, dict):
            words += [flag, *(f"{key}={part!r}" for key, part in value.items())]
        else:
            words.append(f"{flag}={value}")
    return words
