"""What must not be missed reaches the user, whatever the console setting."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import pytest

from minerva.cli import main
from minerva.report.runs import read_run
from tests.trainers.ppo.small_run import ROLLOUT, resume, small_trainer, state_of, train


def notes_of(folder: Path) -> list[tuple[int, str]]:
    """The steps and texts of a run's notes, whose times are checked."""
    found = []
    for line in (folder / "notes.log").read_text().splitlines():
        match = re.fullmatch(r"(\S+)  step (\d+)  (.+)", line)
        assert match is not None, line
        assert abs(datetime.now().astimezone() - datetime.fromisoformat(match[1])) < timedelta(minutes=5)
        found.append((int(match[2]), match[3]))
    return found


@pytest.mark.filterwarnings("always::RuntimeWarning")
@pytest.mark.parametrize("console", [True, False])
def test_a_damaged_last_checkpoint_is_never_replaced_in_silence(
    console: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(run, 4 * ROLLOUT, console=console)
    path, best = run / "ppo_last.pt", state_of(run, "best")["env_steps"]
    path.write_bytes(path.read_bytes()[:-100])
    capsys.readouterr()
    assert main(["train", "--resume", str(run), "--total-steps", str(6 * ROLLOUT)]) == 0
    said, text = capsys.readouterr(), r"ppo_last\.pt is damaged .* Using ppo_best\.pt instead\."
    shown, other = (said.out, said.err) if console else (said.err, said.out)
    assert len(re.findall(text, shown)) == 1 and not re.search(text, other)
    ((step, note),) = [entry for entry in notes_of(run) if "damaged" in entry[1]]
    assert step == best and re.fullmatch(f"Warning: .*{text}", note)
    (session,) = json.loads((run / "config.json").read_text())["resumed"]
    assert session["from_step"] == best
    assert [bool(re.search(text, note)) for note in session["notes"]] == [True]


def test_what_is_only_progress_stays_off_standard_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    train(tmp_path / "run", ROLLOUT)
    resume(tmp_path / "run", 2 * ROLLOUT)
    assert capsys.readouterr().err == ""
    assert notes_of(tmp_path / "run")[-1] == (ROLLOUT, f"Resuming from ppo_last.pt at step {ROLLOUT}.")
    (session,) = json.loads((tmp_path / "run" / "config.json").read_text())["resumed"]
    assert "notes" not in session


def test_the_same_warning_is_given_again_by_the_next_run(tmp_path: Path) -> None:
    for name in ("one", "two"):
        train(tmp_path / name, 2 * ROLLOUT)
        with (tmp_path / name / "metrics.csv").open("r+b") as file:
            file.truncate(40)
    for name in ("one", "two"):
        with pytest.warns(RuntimeWarning, match="metrics.csv does not match its checkpoint"):
            resume(tmp_path / name, 3 * ROLLOUT)
        assert any("metrics.csv does not match" in text for _, text in notes_of(tmp_path / name))


def test_a_refused_start_keeps_what_there_is_to_say(tmp_path: Path) -> None:
    train(tmp_path / "run", 2 * ROLLOUT)
    path = tmp_path / "run" / "ppo_last.pt"
    path.write_bytes(b"")
    trainer = small_trainer()
    trainer.load(tmp_path / "run")
    train(tmp_path / "other", ROLLOUT)
    with pytest.raises(ValueError, match="holds a run already"):
        trainer.train(3 * ROLLOUT, tmp_path / "other")
    with pytest.warns(RuntimeWarning, match="ppo_last.pt is damaged"):
        trainer.train(3 * ROLLOUT)
    trainer.close()


def test_a_health_warning_is_noted(tmp_path: Path) -> None:
    trainer = small_trainer()

    def warn(_: object) -> None:
        if trainer.env_steps == 20:
            assert trainer._run is not None
            trainer._run.warn("Health: two\nlines")

    with pytest.warns(RuntimeWarning, match="Health: two"):
        trainer.train(2 * ROLLOUT, tmp_path / "run", warn)
    trainer.close()
    assert (20, "Warning: Health: two lines") in notes_of(tmp_path / "run")


def test_a_trainer_that_was_saved_before_its_first_step_lost_no_episode(tmp_path: Path) -> None:
    trainer = small_trainer()
    trainer.save(tmp_path / "fresh.pt")
    trainer.close()
    again = small_trainer()
    again.load(tmp_path / "fresh.pt")
    assert not any("did not return" in note for note in again.notes)
    again.close()


# config.json


@pytest.mark.parametrize(
    "content", ["", '{"algorithm": "p', "[1, 2]", '{"resumed": 3}', "\udcff", "[" * 100_000], ids=range(6)
)
def test_a_damaged_description_is_written_again(content: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(run, ROLLOUT, gamma=0.5)
    (run / "config.json").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.warns(RuntimeWarning, match=r"config.json cannot be read .*; it is written again") as caught:
        resume(run, 2 * ROLLOUT, gamma=0.5)
    assert len(caught) == 1 and "\n" not in str(caught[0].message)
    record, description = read_run(run), json.loads((run / "config.json").read_text())
    assert (record.algorithm, record.env_id, record.seed, record.total_steps) == ("ppo", "Pendulum-v1", 1, 2 * ROLLOUT)
    assert record.config["gamma"] == 0.5 and description["versions"]["torch"] == version("torch")
    assert [session["from_step"] for session in description["resumed"]] == [ROLLOUT]
    resume(run, 3 * ROLLOUT, gamma=0.5)
    sessions = json.loads((run / "config.json").read_text())["resumed"]
    assert [session["from_step"] for session in sessions] == [ROLLOUT, 2 * ROLLOUT]


def test_a_missing_description_is_written_again(tmp_path: Path) -> None:
    train(tmp_path / "run", ROLLOUT)
    (tmp_path / "run" / "config.json").unlink()
    resume(tmp_path / "run", 2 * ROLLOUT)
    assert read_run(tmp_path / "run").total_steps == 2 * ROLLOUT
