"""The trials of a tuning: Optuna chooses their settings, and a journal in the folder keeps them.

The journal is written line by line, and a line counts when it is whole. What it says is therefore true after any kill:
a trial that it knows is running is taken up again with the same settings, and one that has ended is never run again.
"""

from __future__ import annotations

import importlib.util
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

try:
    import optuna
    from optuna.pruners import BasePruner, MedianPruner, NopPruner
    from optuna.samplers import BaseSampler, CmaEsSampler, RandomSampler, TPESampler
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
    from optuna.trial import FrozenTrial, TrialState
    from optuna.trial import Trial as LiveTrial
except ModuleNotFoundError as missing:
    raise ValueError('tune: needs Optuna, which is not installed: pip install "minerva-rl[tune]".') from missing

from minerva.tuning.space import Dimension, Space
from minerva.tuning.spec import Search

JOURNAL = "journal.log"
_NAME = "minerva"
_STARTUP = 10  # random trials before a sampler learns from them
_SAFE = 5  # trials that are never pruned
_SPEC, _ERROR = "minerva:spec", "minerva:error"

TrialOutcome = Literal["running", "complete", "pruned", "failed"]
_OUTCOMES: dict[TrialState, TrialOutcome] = {
    TrialState.RUNNING: "running",
    TrialState.WAITING: "running",
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


@dataclass(frozen=True)
class Trial:
    """What the journal knows of a trial."""

    number: int
    """From 0 on."""
    values: dict[str, Any]
    """The searched settings that it varies; choices by their texts."""
    outcome: TrialOutcome
    value: float | None
    """What it reached: of a pruned trial, its newest evaluation."""
    reported: int
    """Evaluations that the journal knows of."""
    error: str | None = None
    """Why it failed."""


class _NoLock(JournalFileSymlinkLock):
    """The tuning's folder has a lock, which does not outlive a killed process."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        return


class Study:
    """The trials in a folder, which this process has locked.

    Args:
        folder: The tuning's folder.
        space: What varies.
        search: How it is searched.
        first: The values of the first trial; None to let the sampler choose them.
        identity: What must stay the same from start to start, as plain values.

    Raises:
        ValueError: The folder holds trials of another search, or its journal is damaged.
    """

    def __init__(
        self, folder: Path, space: Space, search: Search, first: dict[str, Any] | None, identity: Mapping[str, Any]
    ) -> None:
        self._space, self._search = space, search
        self._live: dict[int, LiveTrial] = {}
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        journal = folder / JOURNAL
        _drop_incomplete_line(journal)
        try:
            storage = JournalStorage(JournalFileBackend(str(journal), _NoLock(str(journal))))
            self._study = optuna.create_study(
                storage=storage, study_name=_NAME, direction="maximize", load_if_exists=True,
                pruner=self._pruner(),
            )  # fmt: skip
        except (ValueError, KeyError, AssertionError, TypeError) as error:
            raise ValueError(f"out: {journal} is damaged ({error}); choose another folder.") from error
        plain = json.loads(json.dumps(identity))
        known = self._study.user_attrs.get(_SPEC)
        if known is None:
            self._study.set_user_attr(_SPEC, plain)
        else:
            _check_same(known, plain, folder)
        if first is not None and not self._study.get_trials(deepcopy=False):
            self._study.enqueue_trial(first)

    @property
    def optuna(self) -> optuna.Study:
        """Optuna's own object, for its analyses."""
        return self._study

    def trials(self) -> list[Trial]:
        """Return all trials, in order; those that were stopped are running."""
        return [_known(trial) for trial in self._started()]

    def ask(self) -> Trial:
        """Begin a trial: the journal has it, with its settings, before this returns."""
        self._study.sampler = self._sampler(len(self._started()))
        trial = self._study.ask()
        return self._suggest(trial)

    def resume(self, number: int) -> Trial:
        """Take up a trial again that is running in the journal; settings that a kill left out are chosen now."""
        self._study.sampler = self._sampler(number)
        (frozen,) = (trial for trial in self._started() if trial.number == number)
        return self._suggest(LiveTrial(self._study, frozen._trial_id))

    def report(self, number: int, count: int, value: float) -> bool:
        """Report a trial's evaluation and return whether the trial should be pruned.

        Args:
            number: The trial.
            count: The evaluations so far, this one included.
            value: Its mean over the trial's runs.
        """
        trial = self._live[number]
        trial.report(value, count)
        return count > self._search.warmup and trial.should_prune()

    def complete(self, number: int, value: float) -> None:
        """End a trial with its value."""
        self._tell(number, TrialState.COMPLETE, value)

    def prune(self, number: int) -> None:
        """End a trial early."""
        self._tell(number, TrialState.PRUNED)

    def fail(self, number: int, error: str) -> None:
        """End a trial that has no value."""
        self._live[number].set_user_attr(_ERROR, error)
        self._tell(number, TrialState.FAIL)

    def _tell(self, number: int, state: TrialState, value: float | None = None) -> None:
        # A sampler may write what it has learned when a trial ends: CMA-ES does.
        self._study.sampler = self._sampler(number)
        self._study.tell(self._live.pop(number), value, state)

    def _started(self) -> list[FrozenTrial]:
        return [trial for trial in self._study.get_trials(deepcopy=False) if trial.state != TrialState.WAITING]

    def _suggest(self, trial: LiveTrial) -> Trial:
        values: dict[str, Any] = {}
        for one in self._space.dimensions:
            if one.applies(values):
                values[one.name] = _suggest(trial, one)
        self._live[trial.number] = trial
        (frozen,) = (other for other in self._started() if other.number == trial.number)
        return _known(frozen)

    def _sampler(self, number: int) -> BaseSampler:
        """Return a sampler with random numbers of its own for each trial: a restart does not repeat them."""
        seed = (self._search.sampler_seed * 1_000_003 + number) % 2**32
        if self._search.sampler == "random":
            return RandomSampler(seed=seed)
        if self._search.sampler == "cmaes":
            return CmaEsSampler(seed=seed, n_startup_trials=_STARTUP, warn_independent_sampling=False)
        return TPESampler(seed=seed, n_startup_trials=_STARTUP)

    def _pruner(self) -> BasePruner:
        if self._search.pruner == "none":
            return NopPruner()
        return MedianPruner(n_startup_trials=_SAFE, n_warmup_steps=self._search.warmup)


def check_sampler(sampler: str) -> None:
    """Check that a sampler's package is installed.

    Raises:
        ValueError: It is not.
    """
    if sampler == "cmaes" and importlib.util.find_spec("cmaes") is None:
        raise ValueError(
            'sampler: "cmaes" needs the package cmaes, which is not installed: pip install "minerva-rl[tune]".'
        )


def importances(study: optuna.Study) -> dict[str, float]:
    """Return how much each setting matters, the largest first; nothing where the trials do not say."""
    if len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))) < 2:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = optuna.importance.get_param_importances(study)
        except (ValueError, RuntimeError):
            return {}
    return {name: share for name, share in found.items() if math.isfinite(share)}


def _suggest(trial: LiveTrial, one: Dimension) -> Any:
    """Return a setting's value in a trial: the one that the journal knows, or else the sampler's."""
    if one.kind == "choices":
        return trial.suggest_categorical(one.name, tuple(one.choices))
    if one.kind == "int":
        return trial.suggest_int(one.name, int(one.low), int(one.high), log=one.log)
    return trial.suggest_float(one.name, one.low, one.high, log=one.log)


def _known(trial: FrozenTrial) -> Trial:
    value = trial.value if trial.state in (TrialState.COMPLETE, TrialState.PRUNED) else None
    return Trial(
        trial.number, dict(trial.params), _OUTCOMES[trial.state], value, len(trial.intermediate_values),
        trial.user_attrs.get(_ERROR),
    )  # fmt: skip


def _drop_incomplete_line(journal: Path) -> None:
    """Cut off what a killed process left of a line: the next line would be appended to it."""
    try:
        content = journal.read_bytes()
    except FileNotFoundError:
        return
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with journal.open("r+b") as file:
            file.truncate(whole)


def _check_same(known: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    for key in now:
        if known.get(key) != now[key]:
            ours, its = _difference(now[key], known.get(key))
            raise ValueError(
                f"{key}: must stay {its}, with which the trials in {folder} were started, got {ours}; give the same, "
                "or choose another --out."
            )


def _difference(ours: Any, its: Any) -> tuple[Any, Any]:
    """Return the parts of two values that differ."""
    if isinstance(ours, dict) and isinstance(its, dict):
        names = [name for name in {**its, **ours} if ours.get(name) != its.get(name)]
        return ({name: side.get(name, "the default") for name in names} for side in (ours, its))  # type: ignore[return-value]
    if isinstance(ours, Sequence) and isinstance(its, Sequence) and not isinstance(ours, str):
        return [one for one in ours if one not in its] or ours, [one for one in its if one not in ours] or its
    return ours, its
