"""Kill a search for settings again and again, and check that no trial is lost, changed or run twice.

    python -m benchmarks.kill_and_tune --out benchmarks/results/kill_and_tune.json

`minerva tune` searches on a task that is made for it (`benchmarks/tuning_task.py`). It is killed with SIGKILL while
runs are learning, and started again with the same command. At the end the journal must have each trial once; trials
that had ended before a kill must not have been touched, and those that a kill interrupted must have kept their settings
and be equal, evaluation by evaluation, to runs of the same settings that nobody disturbed. Then the best settings and
the default ones are trained with other seeds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

import minerva
from benchmarks import tuning_task
from benchmarks.provenance import commit_of, hardware
from minerva import api
from minerva.checkpointing import command_line, versions
from minerva.sweeps.status import EvaluationLog
from minerva.tuning.spec import folder_of, read_tune_spec
from minerva.tuning.study import JOURNAL

ROOT = Path(__file__).parents[1]
EVAL_INTERVAL = 256
SETTINGS = """
rollout_steps = 64
minibatch_size = 32
update_epochs = 4
eval_episodes = 4
eval_interval = {interval}
compile = false
checkpoint_interval = 256
"""
SPEC = """
name = "reach"
algorithms = ["ppo"]
envs = ["{env}"]
seeds = {seeds}
total_steps = {steps}
preset = "none"
device = "cpu"

[settings]
{settings}
[search]
policy_lr = {{low = 1e-5, high = 3e-2, log = true}}
gamma = {{low = 0.8, high = 0.99}}
optimizer_type = {{choices = ["adam", "sgd"]}}
sgd_momentum = {{low = 0.5, high = 0.99, when = {{optimizer_type = "sgd"}}}}

[tune]
trials = {trials}
warmup = 2
"""
TIMEOUT = 600.0
_CREATE, _SET_STATE = 4, 6  # what a line of Optuna's journal does


def kill_and_tune(
    folder: Path, trials: int, kills: Sequence[int], seeds: Sequence[int], steps: int, jobs: int
) -> dict[str, Any]:
    """Run a search that is killed on the way, and return what came out.

    Args:
        folder: An empty folder.
        trials: Trials of the search.
        kills: After how many ended trials it is killed, each time.
        seeds: Seeds of each trial.
        steps: Steps of each run.
        jobs: Runs at once.
    """
    spec, out = folder / "spec.toml", folder / "out"
    spec.write_text(
        SPEC.format(
            env=tuning_task.ID,
            seeds=list(seeds),
            steps=steps,
            settings=SETTINGS.format(interval=EVAL_INTERVAL),
            trials=trials,
        ),
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "minerva.cli", "tune", str(spec), "--out", str(out), "--jobs", str(jobs)]
    interrupted: dict[int, dict[str, Any]] = {}
    learning: set[str] = set()
    untouched: dict[Path, int] = {}
    rounds = []
    for wanted in kills:
        with (folder / "said.log").open("a") as said:
            tuner = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=said)
            _wait_until_learning(tuner, out, wanted, steps // EVAL_INTERVAL)
            tuner.kill()
            tuner.wait()
        known = trials_of(out)
        running = {trial.number: trial.params for trial in known if trial.state == optuna.trial.TrialState.RUNNING}
        evaluated = {
            run.relative_to(out).as_posix(): len(EvaluationLog(run).read())
            for number in sorted(running)
            for run in sorted((out / folder_of(number)).glob("seed*"))
        }
        interrupted |= running
        learning |= {run for run, count in evaluated.items() if count}
        ended = [trial.number for trial in known if trial.state.is_finished()]
        files = [file for number in ended for file in (out / folder_of(number)).glob("seed*/*_last.pt")]
        untouched |= {file: untouched.get(file, file.stat().st_mtime_ns) for file in files}
        rounds.append({"ended": len(ended), "running": sorted(running), "evaluations_of_their_runs": evaluated})
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    known = trials_of(out)
    created, closed = _count_lines(out)
    checked = read_tune_spec(spec, api.algorithms())
    return {
        "exit_code": done.returncode,
        "said": done.stdout + done.stderr,
        "rounds": rounds,
        "trials": len(known),
        "ended": sum(trial.state.is_finished() for trial in known),
        "pruned": sum(trial.state == optuna.trial.TrialState.PRUNED for trial in known),
        "created_in_the_journal": created,
        "ended_in_the_journal": closed,
        "folders": len(list((out / "trials").iterdir())),
        "touched_after_their_end": sum(file.stat().st_mtime_ns != before for file, before in untouched.items()),
        "interrupted": sorted(interrupted),
        # A trial whose settings were being written has no run yet; those that it has must stay.
        "interrupted_with_other_settings": sum(
            not params.items() <= known[k].params.items() for k, params in interrupted.items()
        ),
        "interrupted_with_other_evaluations": _count_unequal(checked, known, learning, folder, out),
    }


def trials_of(out: Path) -> list[optuna.trial.FrozenTrial]:
    """Return the trials of a search, read as any user of Optuna would."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if not (out / JOURNAL).exists():
        return []
    storage = JournalStorage(JournalFileBackend(str(out / JOURNAL)))
    studies = storage.get_all_studies()
    if not studies:
        return []
    waiting = optuna.trial.TrialState.WAITING
    trials = optuna.load_study(study_name=None, storage=storage).get_trials(deepcopy=False)
    return [trial for trial in trials if trial.state != waiting]


def _wait_until_learning(tuner: subprocess.Popen[bytes], out: Path, wanted: int, evaluations: int) -> None:
    """Return when so many trials have ended, and a run of another one is between its second and its last evaluation."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        if tuner.poll() is not None:
            raise RuntimeError(f"the search ended with {tuner.returncode} before it was killed")
        known = trials_of(out)
        running = [trial.number for trial in known if not trial.state.is_finished()]
        runs = [run for number in running for run in (out / folder_of(number)).glob("seed*")]
        if len(known) - len(running) >= wanted and any(
            2 <= len(EvaluationLog(run).read()) < evaluations for run in runs
        ):
            return
        time.sleep(0.02)
    raise RuntimeError("the search did not come so far in time")


def _count_lines(out: Path) -> tuple[int, int]:
    """Count how often the journal creates a trial, and how often it ends one."""
    lines = [json.loads(line) for line in (out / JOURNAL).read_text(encoding="utf-8").splitlines()]
    ended = [state.value for state in optuna.trial.TrialState if state.is_finished()]
    return sum(line["op_code"] == _CREATE for line in lines), sum(
        line["op_code"] == _SET_STATE and line["state"] in ended for line in lines
    )


def _count_unequal(
    spec: Any, known: list[optuna.trial.FrozenTrial], learning: set[str], folder: Path, out: Path
) -> int:
    """Train runs that were interrupted once more, undisturbed, and count those whose evaluations differ."""
    unequal = 0
    for trial in known:
        for run in spec.plan(trial.number, trial.params, api.algorithms()):
            if run.folder not in learning:
                continue
            alone = folder / "alone" / run.folder
            words = [sys.executable, "-m", "minerva.cli", *run.words, "--out-dir", str(alone), "--no-console"]
            subprocess.run(words, cwd=ROOT, check=True, capture_output=True, timeout=TIMEOUT)
            whole, found = EvaluationLog(alone).read(), EvaluationLog(out / run.folder).read()
            # A pruned trial was stopped on the way.
            unequal += found != whole[: len(found)] or not found
    return unequal


def compare(folder: Path, preset: Path, steps: int, seeds: Sequence[int]) -> dict[str, Any]:
    """Train the best settings and the default ones with other seeds; return their last evaluations."""
    common = {
        "algorithms": ["ppo"], "envs": [tuning_task.ID], "seeds": list(seeds), "total_steps": steps, "device": "cpu",
    }  # fmt: skip
    settings = SETTINGS.format(interval=EVAL_INTERVAL).splitlines()
    default = {line.split(" = ")[0]: json.loads(line.split(" = ")[1]) for line in settings if line}
    found = {}
    for name, more in (("best", {"preset": str(preset)}), ("default", {"preset": "none", "settings": default})):
        result = minerva.sweep({"name": name, **common, **more}, folder / name, console=False)
        found[name] = [run.evaluation for run in result.runs]
    return found


def main() -> None:
    """Run the scenario and write what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file for the result (JSON)")
    parser.add_argument("--trials", type=int, default=20, help="trials of the search")
    parser.add_argument("--kills", type=int, nargs="+", default=[5, 12], help="ended trials before each kill")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], help="seeds of each trial")
    parser.add_argument("--others", type=int, nargs="+", default=[11, 12, 13], help="seeds of the comparison")
    parser.add_argument("--steps", type=int, default=2048, help="steps of each run")
    parser.add_argument("--jobs", type=int, default=2, help="runs at once")
    options = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kill-and-tune-") as root:
        folder = Path(root)
        found = kill_and_tune(folder, options.trials, options.kills, options.seeds, options.steps, options.jobs)
        print(found.pop("said"))
        preset = folder / "out" / "best.toml"
        result = {
            "command": command_line(),
            "commit": commit_of(Path(__file__).parent),
            "versions": versions(),
            "hardware": hardware(),
            "steps": options.steps, "tuned_on": options.seeds, "jobs": options.jobs,
            **found,
            "best": preset.read_text(encoding="utf-8").splitlines(),
            "other_seeds": options.others,
            "returns_with_other_seeds": compare(folder, preset, options.steps, options.others),
            "seconds": round(time.monotonic() - begin),
        }  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({name: result[name] for name in found} | result["returns_with_other_seeds"], indent=1))


if __name__ == "__main__":
    main()
