"""Run a tuning: a sweep that plans its runs as it goes, a few for each trial that the study begins."""

from __future__ import annotations

import math
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from minerva.sweeps.display import Display
from minerva.sweeps.executor import Ended, Executor
from minerva.sweeps.expansion import Algorithms
from minerva.sweeps.status import EvaluationLog
from minerva.sweeps.sweep import Sweep
from minerva.tuning.outcome import best_of, count_outcomes, write_best
from minerva.tuning.page import write_page
from minerva.tuning.spec import TuneSpec
from minerva.tuning.study import Study, Trial
from minerva.utils.folder_lock import FolderLock

BEST = "best.toml"
PAGE = "tuning.html"


class TuneResult(NamedTuple):
    """How a tuning has ended."""

    out_dir: Path
    """Its folder."""
    trials: tuple[Trial, ...]
    """All trials that were begun, in order."""
    best: Trial | None
    """The complete trial with the highest value."""
    preset: Path | None
    """The file with its settings, for `minerva train --preset`."""
    page: Path | None
    """The page with history, importances and slices."""
    tuned_on: str
    """The seeds with which the trials were compared; a result is reported on others."""
    stopped_by: int | None = None
    """The signal that stopped it."""


@dataclass
class _Running:
    """A trial whose runs have not all ended."""

    folders: list[str]
    logs: list[EvaluationLog]
    reported: int
    """Evaluations that the study knows of."""


class Tuner(Sweep):
    """A tuning in its folder. One process at a time may run it.

    Args:
        spec: What is searched, and how.
        algorithms: The algorithms.
        out_dir: Its folder.
        executor: Starts the runs.
        retries: How often a run is resumed that has failed without getting further.
        display: Shows how far it has come.
    """

    _rule = "out: one process at a time may tune in a folder"

    def __init__(
        self, spec: TuneSpec, algorithms: Algorithms, out_dir: Path, executor: Executor, retries: int = 2,
        display: Display | None = None,
    ) -> None:  # fmt: skip
        sweep = spec.sweep
        super().__init__(sweep.name, [], out_dir, executor, sweep.resources, retries, sweep.keep_replay, display)
        self.spec, self._algorithms = spec, algorithms
        self._study: Study
        self._trials: dict[int, _Running] = {}

    def tune(self) -> TuneResult:
        """Run until all trials have ended or a signal stops the tuning; starting again goes on.

        Raises:
            LockedError: Another process tunes in the folder.
            ValueError: The folder holds another tuning, or cannot be written to.
        """
        stopped_by = self.run().stopped_by
        preset, page = self.out_dir / BEST, self.out_dir / PAGE
        best = best_of(self._study.trials())
        return TuneResult(
            self.out_dir, tuple(self._study.trials()), best, None if best is None else preset,
            page if (self._folder / PAGE).exists() else None, self.spec.tuned_on, stopped_by,
        )  # fmt: skip

    def _read_earlier(self) -> None:
        spec = self.spec
        self._study = Study(self._folder, spec.space, spec.search, spec.first, spec.identity())
        finished: dict[str, Trial] = {}
        for trial in self._study.trials():
            if trial.outcome == "running":
                self._begin(self._study.resume(trial.number))
                continue
            with suppress(ValueError):  # for which it has failed
                for run in spec.plan(trial.number, trial.values, self._algorithms):
                    self._add(run)
                    finished[run.folder] = trial
        super()._read_earlier()
        for folder, trial in finished.items():
            if folder in self._waiting:
                self._runs[folder].state = "failed" if trial.outcome == "failed" else "pruned"
        self._waiting = deque(folder for folder in self._waiting if folder not in finished)
        self._looked()
        self._say_how_far()

    def _loop(self, lock: FolderLock) -> None:
        super()._loop(lock)
        self._say_how_far()
        best = best_of(self._study.trials())
        if best is not None:
            write_best(self._folder / BEST, self.spec, best, self._study.trials(), self._algorithms)
        write_page(self._folder / PAGE, self.spec, self._study)

    # Trials

    def _begin(self, trial: Trial) -> bool:
        """Plan the runs of a trial; return whether there are any."""
        try:
            runs = self.spec.plan(trial.number, trial.values, self._algorithms)
        except ValueError as error:
            self._study.fail(trial.number, str(error))
            self._display.say(f"failed  trial {trial.number}: {error}")
            return False
        for run in runs:
            self._add(run)
        folders = [run.folder for run in runs]
        self._trials[trial.number] = _Running(
            folders, [EvaluationLog(self._folder / folder) for folder in folders], trial.reported
        )
        return True

    def _is_complete(self) -> bool:
        return not self._waiting and len(self._study.trials()) >= self.spec.search.trials

    def _plan_more(self) -> bool:
        while len(self._study.trials()) < self.spec.search.trials:
            trial = self._study.ask()
            if self._begin(trial):
                self._waiting.extend(self._trials[trial.number].folders)
                self._say_how_far()
                self._write_plan()
                return True
        return False

    def _submit(self, folder: str) -> None:
        self._forget_log(folder)
        super()._submit(folder)

    def _handle(self, ended: Ended) -> None:
        super()._handle(ended)
        self._forget_log(ended.path.relative_to(self._folder).as_posix())
        self._looked()

    def _forget_log(self, folder: str) -> None:
        """Read a run's log from its beginning: a run that is resumed replaces what it has logged since a checkpoint."""
        for trial in self._trials.values():
            if folder in trial.folders:
                trial.logs[trial.folders.index(folder)] = EvaluationLog(self._folder / folder)

    def _looked(self) -> None:
        ended = [number for number, trial in self._trials.items() if self._advance(number, trial)]
        for number in ended:
            self._prune(self._trials.pop(number).folders)
        if ended:
            self._say_how_far()

    def _advance(self, number: int, trial: _Running) -> bool:
        """Tell the study what is new of a trial; return whether the trial has ended."""
        runs = [self._runs[folder] for folder in trial.folders]
        failed = [run for run in runs if run.state == "failed"]
        if failed:
            self._study.fail(number, f"{failed[0].folder}: {failed[0].error}")
            return True
        known = [log.read() for log in trial.logs]
        done = all(run.state == "done" for run in runs)
        at_end = done or all(run.steps >= run.total_steps for run in runs)
        for count in range(trial.reported + 1, min(map(len, known)) + 1):
            value = fmean(means[count - 1] for means in known)
            if not math.isfinite(value):
                self._study.fail(number, f"its evaluation {count} is {value}")
                return True
            trial.reported = count
            if self._study.report(number, count, value) and not at_end:
                self._study.prune(number)
                return True
        if not done:
            return False
        if not all(known):
            self._study.fail(number, "its runs have no evaluation")
        else:
            last = self.spec.search.evaluations
            self._study.complete(number, fmean(fmean(means[-last:]) for means in known))
        return True

    def _steps_left(self) -> int:
        unplanned = max(self.spec.search.trials - len(self._study.trials()), 0)
        return super()._steps_left() + unplanned * len(self.spec.sweep.seeds) * self.spec.base.final_step

    def _say_how_far(self) -> None:
        trials = self._study.trials()
        counts = count_outcomes(trials)
        parts = [f"{count:,} {outcome}" for outcome, count in counts.items() if count or outcome == "complete"]
        note = f"{len(trials):,} of {self.spec.search.trials:,} trials: {', '.join(parts)}"
        best = best_of(trials)
        self.status.note = note if best is None else f"{note}; best {best.value:,.4g} (trial {best.number})"
