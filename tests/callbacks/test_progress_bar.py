from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest

from minerva.callbacks import ProgressBar
from tests.loggers.test_console import run_in_terminal, screen
from tests.trainers.ppo.small_run import ROLLOUT, small_trainer


def test_plain_lines_where_there_is_no_terminal(tmp_path: Path) -> None:
    stream = io.StringIO()
    trainer = small_trainer(eval_episodes=0)
    trainer.train(3 * ROLLOUT + 1, tmp_path / "run", [ProgressBar(stream), lambda trainer: trainer.env_steps < 20])
    assert re.fullmatch(r"ppo Pendulum-v1  20 / 48 steps   41.7%  .*stopped after 0:\d\d\n", stream.getvalue())
    trainer.train(callbacks=ProgressBar(stream))  # continues from 20 to the end of the last rollout
    trainer.close()
    assert re.fullmatch(r"ppo Pendulum-v1  48 / 48 steps  100.0%  .*done in 0:\d\d", stream.getvalue().splitlines()[-1])


def test_no_second_progress_bar(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    stream = io.StringIO()
    trainer = small_trainer(eval_episodes=0, console=True)
    trainer.train(ROLLOUT, tmp_path / "run", ProgressBar(stream))
    trainer.close()
    assert stream.getvalue() == "" and "16 / 16 steps" in capsys.readouterr().out


SCRIPT = """
import time
from minerva.callbacks import ProgressBar
from tests.trainers.ppo.small_run import ROLLOUT, small_trainer
trainer = small_trainer(eval_episodes=0, num_envs=2)
def slowly(trainer):
    time.sleep(0.005)
{before}
try:
    trainer.train(14 * ROLLOUT * 2, {folder!r}, [ProgressBar(), slowly])
except MemoryError:
    print("out of memory")
trainer.close()
print("afterwards")
"""


def test_a_live_bar_in_a_terminal(tmp_path: Path) -> None:
    script = SCRIPT.format(before="", folder=str(tmp_path / "run"))
    text = run_in_terminal(80, script=script)
    seen = [line for line in screen(text, 80) if line]
    assert re.fullmatch(r"ppo Pendulum-v1  ━+  100%  448 / 448", seen[0])
    assert re.match(r"[\d,]+ steps/s · done in 0:0\d · training -[\d.,]+$", seen[1]), seen
    assert seen[2:] == ["afterwards"]
    assert text.count("\x1b[?25h") == text.count("\x1b[?25l") == 1  # the cursor is restored
    assert len(re.findall(r"\d+%", text)) >= 3  # it was drawn during the run


def test_an_error_in_the_middle_of_an_update_restores_the_terminal_at_exit(tmp_path: Path) -> None:
    before = "def update(total): raise MemoryError\ntrainer.update = update"
    text = run_in_terminal(80, script=SCRIPT.format(before=before, folder=str(tmp_path / "run")))
    assert text.count("\x1b[?25h") == text.count("\x1b[?25l") == 1
    seen = [line for line in screen(text, 80) if line]
    assert seen[:2] == ["out of memory", "afterwards"] and "32 / 448" in seen[2]


def test_an_object_is_used_again_after_an_error(tmp_path: Path) -> None:
    stream = io.StringIO()
    bar, trainer = ProgressBar(stream), small_trainer(eval_episodes=0)

    def fail(*_: Any) -> Any:
        raise MemoryError

    trainer.update = fail  # type: ignore[assignment,method-assign]
    with pytest.raises(MemoryError):
        trainer.train(ROLLOUT, tmp_path / "one", bar)
    trainer.close()
    again = small_trainer(eval_episodes=0)
    again.train(ROLLOUT, tmp_path / "two", bar)
    again.close()
    assert "done in" in stream.getvalue().splitlines()[-1]
