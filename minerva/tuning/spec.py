"""The specification of a tuning: a sweep's form, ``[search]``, and ``[tune]``; checked before anything starts."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from minerva.sweeps.expansion import Algorithms, PlannedRun, expand
from minerva.sweeps.seeds import seeds_as_text
from minerva.sweeps.spec import Place, Source, Spec, SpecError, check_spec, read_table
from minerva.tuning.space import Space, read_space, text_of
from minerva.utils.ranges import Range, shown, whole_number

SAMPLERS = ("tpe", "random", "cmaes")
PRUNERS = ("median", "none")


class Search(NamedTuple):
    """How the search proceeds: ``[tune]``."""

    trials: int = 50
    """How many settings are tried."""
    sampler: str = "tpe"
    """Chooses them: "tpe", "random" or "cmaes"."""
    pruner: str = "median"
    """Ends a trial early: "median", when its best evaluation so far is below the median of the others, or "none"."""
    warmup: int = 5
    """Evaluations of a trial before it may be pruned; the first five trials never are."""
    evaluations: int = 1
    """The value of a run is the mean of this number of evaluations at its end; of a trial, the mean of its runs."""
    sampler_seed: int = 0
    """Seed of the sampler."""


@dataclass(frozen=True)
class TuneSpec:
    """A checked specification."""

    sweep: Spec
    """What all trials have in common."""
    space: Space
    search: Search
    base: PlannedRun
    """A run of the first seed without any searched setting."""
    first: dict[str, Any] | None
    """The values of the searched settings without a search; None where one lies outside of the space."""

    @property
    def algorithm(self) -> str:
        """The algorithm."""
        return self.sweep.algorithms[0]

    @property
    def env(self) -> str:
        """The environment."""
        return self.sweep.envs[0]

    @property
    def tuned_on(self) -> str:
        """The seeds with which trials are compared, such as "1-3"."""
        return seeds_as_text(self.sweep.seeds)

    def plan(self, number: int, values: Mapping[str, Any], algorithms: Algorithms) -> list[PlannedRun]:
        """Return the runs of a trial, one for each seed.

        Raises:
            SpecError: Its settings break a rule together.
        """
        runs = expand(_with_variants(self.sweep, [self.space.fields(values)]), algorithms)
        return [
            dataclasses.replace(run, folder=f"{folder_of(number)}/seed{run.seed}", variant=f"trial{number}")
            for run in runs
        ]

    def identity(self) -> dict[str, Any]:
        """Return what must stay the same for the trials of a journal to be comparable, as plain values."""
        base = self.base
        return {
            "algorithms": base.algorithm, "envs": base.env, "seeds": list(self.sweep.seeds),
            "total_steps": base.total_steps, "evaluations": self.search.evaluations, "settings": base.settings,
            "search": [str(one) + (f" when {dict(one.when)}" if one.when else "") for one in self.space.dimensions],
        }  # fmt: skip


def folder_of(number: int) -> str:
    """Return the folder of a trial's runs, relative to the tuning's folder."""
    return f"trials/{number:04d}"


def read_tune_spec(spec: str | Path | Mapping[str, Any], algorithms: Algorithms) -> TuneSpec:
    """Read a specification from a TOML file, or from a mapping of the same form, and check each value of the search.

    Raises:
        SpecError: It is wrong; the message names the line.
    """
    table, source = read_table(spec, "tuning")
    for key in ("grid", "variants"):
        if key in table:
            raise source.error((key,), f"{key}: is for `minerva sweep`; leave it out, or list choices in [search].")
    if "search" not in table:
        raise source.error((), "search: is missing; add [search] with the settings that vary.")
    searched, tune = table.pop("search"), table.pop("tune", {})
    sweep = check_spec(table, source)
    for key, names in (("algorithms", sweep.algorithms), ("envs", sweep.envs)):
        if len(names) > 1:
            raise source.error(
                (key,), f"{key}: a tuning must have exactly one, got {', '.join(names)}; tune each alone."
            )
    search = _read_search(tune, source)
    (algorithm,) = sweep.algorithms
    (base, *_) = expand(sweep, algorithms)
    config_class = algorithms.config_class(algorithm)
    space = read_space(searched, config_class, source)
    corners = [space.fields(corner) for corner in space.corners()]
    checked = dataclasses.replace(_with_variants(sweep, corners), source=_SearchSource(source, corners))
    expand(dataclasses.replace(checked, seeds=sweep.seeds[:1]), algorithms)
    settings = {**config_class().to_plain(), **base.settings}
    if not settings["eval_episodes"]:
        raise source.error(
            ("settings", "eval_episodes"), "eval_episodes: must be at least 1, because trials are compared by their "
            "evaluations, got 0."
        )  # fmt: skip
    return TuneSpec(sweep, space, search, base, space.first(settings))


def _with_variants(sweep: Spec, variants: list[dict[str, Any]]) -> Spec:
    named = tuple({"name": f"{k}", **fields} for k, fields in enumerate(variants))
    return dataclasses.replace(sweep, variants=named)


class _SearchSource(Source):
    """Finds the line of an error in ``[search]``, where a combination of its values is expanded as a variant."""

    def __init__(self, source: Source, variants: list[dict[str, Any]]) -> None:
        super().__init__(source.name, source.text)
        self._variants = variants

    def error(self, place: Place, message: str) -> SpecError:
        if place[:1] != ("variants",):
            return super().error(place, message)
        others = {name: value for name, value in self._variants[int(place[1])].items() if name != place[2]}
        listed = ", ".join(f"{name} = {text_of(value)}" for name, value in others.items())
        return super().error(("search", *place[2:]), f"{message} (With {listed}.)" if listed else message)


def _read_search(table: Any, source: Source) -> Search:
    if not isinstance(table, dict):
        raise source.error(("tune",), f"tune: must be a table [tune], got {shown(table)}.")
    for key in table:
        if key not in Search._fields:
            near = difflib.get_close_matches(key, Search._fields, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"The keys are {', '.join(Search._fields)}."
            raise source.error(("tune", key), f"{key}: is not a key of [tune]. {hint}")
    found = Search(**table)
    try:
        for key, least, most in (("trials", 1, 100_000), ("evaluations", 1, 10_000), ("warmup", 0, 10_000)):
            whole_number(key, getattr(found, key), Range(least, most, f"be a whole number from {least} on"))
        whole_number("sampler_seed", found.sampler_seed, Range(0, 2**31 - 1, "be a whole number from 0 on"))
        for key, known in (("sampler", SAMPLERS), ("pruner", PRUNERS)):
            if getattr(found, key) not in known:
                *most_, last = map(repr, known)
                raise ValueError(f"{key}: must be {', '.join(most_)} or {last}, got {shown(getattr(found, key))}.")
    except ValueError as error:
        raise source.error(("tune", str(error).partition(":")[0]), str(error)) from error
    return found
