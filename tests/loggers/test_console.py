from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from typing import Any

import pytest

from minerva.loggers import ConsoleLogger, Logger


class Clock:
    """A clock that tests set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def lines(stream: io.StringIO) -> list[str]:
    return [re.sub(" +", " ", line) for line in stream.getvalue().splitlines()]


def test_plain_lines_keep_their_interval() -> None:
    stream, clock = io.StringIO(), Clock()
    console = ConsoleLogger(1000, title="PPO Pendulum-v1", stream=stream, every_seconds=5.0, clock=clock)
    logger: Logger = console
    for step in range(1, 321):  # 32 steps per second, ten seconds
        clock.now += 1 / 32
        console.progress(step)
    assert lines(stream) == [
        "PPO Pendulum-v1 160 / 1,000 steps 16.0% 32 steps/s 0:26 left",
        "PPO Pendulum-v1 320 / 1,000 steps 32.0% 32 steps/s 0:21 left",
    ]
    # An evaluation is shown at once; other metrics wait for the next line.
    logger.log({"train/episode_return": -1234.5, "charts/SPS": 61.0}, 320)
    assert len(lines(stream)) == 2
    logger.log({"eval/return_mean": -150.25, "eval/return_std": 12.345, "eval/return_min": -170.0}, 320)
    assert lines(stream)[2:] == [
        "PPO Pendulum-v1 320 / 1,000 steps 32.0% 61 steps/s 0:21 left evaluation -150.2 ± 12.35 training -1,234.5"
    ]
    logger.flush()
    clock.now += 1.0
    console.progress(1000)
    assert len(lines(stream)) == 3
    console.close()
    console.close()
    assert lines(stream)[3:] == [
        "PPO Pendulum-v1 1,000 / 1,000 steps 100.0% 61 steps/s done in 0:11 evaluation -150.2 ± 12.35 training -1,234.5"
    ]
    clock.now += 100.0
    console.progress(1000)
    console.log({"eval/return_mean": 1.0}, 1000)
    assert len(lines(stream)) == 4
    console.message("after the end")
    assert lines(stream)[4] == "after the end"


def test_a_resumed_run_measures_its_own_speed() -> None:
    stream, clock = io.StringIO(), Clock()
    console = ConsoleLogger(2000, start_step=1000, stream=stream, every_seconds=5.0, clock=clock)
    clock.now += 10.0
    console.progress(1100)
    assert lines(stream) == ["1,100 / 2,000 steps 55.0% 10 steps/s 1:30 left"]
    clock.now += 10.0
    console.close()
    assert lines(stream)[1] == "1,100 / 2,000 steps 55.0% 5 steps/s stopped after 0:20"


def test_the_remaining_time_follows_a_change_of_speed() -> None:
    stream, clock = io.StringIO(), Clock()
    console = ConsoleLogger(100_000, stream=stream, every_seconds=1.0, clock=clock)
    step = 0
    for rate in (1000, 10):  # such as random actions first, then updates
        for _ in range(10 if rate == 1000 else 200):
            clock.now += 1.0
            step += rate
            console.progress(step)
    assert step == 12_000
    assert lines(stream)[-1].endswith("10 steps/s 2:26:40 left")


@pytest.mark.parametrize(
    ("training", "shown"),
    [(1391.0, "690 steps/s (50% evaluating)"), (690.0, "690 steps/s"), (692.0, "690 steps/s"), (0.0, "690 steps/s")],
)
def test_the_speed_is_that_of_the_whole_run_with_the_share_of_evaluation(training: float, shown: str) -> None:
    stream = io.StringIO()
    console = ConsoleLogger(100, stream=stream, clock=Clock())
    console.log({"charts/SPS": 690.0, "charts/SPS_training": training}, 50)
    console.close()
    assert lines(stream) == [f" 50 / 100 steps 50.0% {shown} stopped after 0:00"]


def test_nothing_known_yet() -> None:
    stream, clock = io.StringIO(), Clock()
    console = ConsoleLogger(100, stream=stream, clock=clock)
    console.log({"eval/return_mean": float("nan")}, 0)
    assert lines(stream) == [" 0 / 100 steps 0.0% -:-- left evaluation nan"]
    ConsoleLogger(0, stream=stream, clock=clock).close()
    assert lines(stream)[1] == "0 / 0 steps 100.0% done in 0:00"


def test_characters_that_the_stream_cannot_encode_are_replaced() -> None:
    raw = io.BytesIO()
    console = ConsoleLogger(100, title="Pendelübung", stream=io.TextIOWrapper(raw, encoding="ascii"), clock=Clock())
    console.log({"eval/return_mean": 1.0, "eval/return_std": 2.0}, 0)
    assert raw.getvalue().startswith(b"Pendel?bung")
    assert b"1.00 +/- 2.00" in raw.getvalue()


MPO = {
    "eta": 0.8412, "alpha_mean": 9.987, "alpha_std": 1000.4, "health/kl_mean_ratio": 0.93,
    "health/kl_std_ratio": 0.00512, "health/ess": 14.26, "health/dual_saturation": 0.0, "health/skipped": 0.0,
    "loss/q": 3.0,
}  # fmt: skip
VMPO = {
    "vmpo/temperature_raw": 1e-7, "vmpo/alpha_mu": 1.0, "vmpo/alpha_sigma": 2.5, "health/kl_mean_ratio": 12.0,
    "health/kl_std_ratio": 1.0, "health/ess": 812.4, "vmpo/selected_frac": 0.5, "health/dual_saturation": 1 / 3,
    "health/skipped": 1234.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("metrics", "shown"),
    [
        (MPO, "η 0.841 α 9.99 / 1,000 KL/ε 0.93 / 0.00512 ESS 14.3 at floor 0 skipped 0"),
        (VMPO, "η 1e-07 α 1 / 2.5 KL/ε 12 / 1 ESS 812 selected 0.5 at floor 0.333 skipped 1,234"),
        ({"eta": float("inf"), "alpha_mean": float("nan"), "alpha_std": -1e9}, "η inf α nan / -1e+09"),
        ({"loss/policy": 1.0}, ""),
    ],
    ids=["mpo", "vmpo", "odd", "ppo"],
)
def test_the_health_of_the_optimization(metrics: dict[str, float], shown: str) -> None:
    stream, clock = io.StringIO(), Clock()
    console = ConsoleLogger(100, stream=stream, clock=clock)
    console.log({**metrics, "charts/SPS": 10.0, "train/episode_return": 3.0}, 50)
    console.close()
    assert lines(stream) == [f" 50 / 100 steps 50.0% 10 steps/s stopped after 0:00 training 3.00 {shown}".rstrip()]


def test_health_without_greek() -> None:
    raw = io.BytesIO()
    console = ConsoleLogger(100, stream=io.TextIOWrapper(raw, encoding="ascii"), clock=Clock())
    console.log({**MPO, "eval/return_mean": 1.0}, 0)
    assert b"eta 0.841  alpha 9.99 / 1,000  KL/eps 0.93 / 0.00512  ESS 14.3" in raw.getvalue()


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(28, "full"), ValueError("I/O operation on closed file")])
@pytest.mark.parametrize("where", ["write", "flush"])
def test_a_reader_that_disappears_is_not_an_error(error: Exception, where: str) -> None:
    class Gone(io.StringIO):
        def _fail(self, *_: Any) -> int:
            raise error

    stream = Gone()
    setattr(stream, where, stream._fail)
    console = ConsoleLogger(100, stream=stream, every_seconds=0.0)
    console.progress(1)
    console.log({"eval/return_mean": 1.0}, 2)
    console.message("text")
    console.flush()
    console.close()


def test_a_closed_stream_and_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    stream.close()
    ConsoleLogger(100, stream=stream).close()
    monkeypatch.setattr(sys, "stdout", None)
    ConsoleLogger(100).close()


def test_a_slow_terminal_is_kept() -> None:
    class Slow(io.StringIO):
        full = True

        def write(self, text: str) -> int:
            if self.full:
                raise BlockingIOError
            return super().write(text)

    stream = Slow()
    console = ConsoleLogger(100, stream=stream)
    console.message("lost")
    stream.full = False
    console.message("passes")
    assert stream.getvalue() == "passes\n"


def test_progress_is_cheap() -> None:
    console = ConsoleLogger(10_000_000, stream=io.StringIO())
    start = time.perf_counter()
    for step in range(100_000):
        console.progress(step)
    assert time.perf_counter() - start < 1.0  # ten microseconds per call; 0.25 on an idle machine


RUN = """
import time
from minerva.loggers import ConsoleLogger
console = ConsoleLogger(1000, title="PPO [Hopper-v5]", every_seconds=60.0)
for step in range(0, 600, 100):
    console.progress(step)
    time.sleep(0.06)
console.message("saved [red]ppo_last.pt")
print("a line of the environment's")
console.log({"train/episode_return": 99.0, "charts/SPS": 4321.0}, 600)
console.log({"eval/return_mean": 123.456, "eval/return_std": 7.5}, 600)
console.progress(1000)
console.close()
console.close()
print("afterwards")
"""


def run_in_terminal(columns: int, term: str = "xterm-256color", script: str = RUN) -> str:
    """Run a script, by default the one above, in a pseudo-terminal and return its output."""
    main, worker = pty.openpty()
    fcntl.ioctl(worker, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
    }
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", script],
        stdin=worker,
        stdout=worker,
        stderr=worker,
        env=env | {"TERM": term, "PYTHONIOENCODING": "utf-8"},
    )
    os.close(worker)
    chunks: list[bytes] = []

    def drain() -> None:
        try:
            while chunk := os.read(main, 65536):
                chunks.append(chunk)
        except OSError:  # the terminal's other end is closed
            pass

    thread = threading.Thread(target=drain)
    thread.start()
    try:
        assert process.wait(timeout=30) == 0, b"".join(chunks).decode()
    finally:
        process.kill()
        thread.join()
        os.close(main)
    return b"".join(chunks).decode()


def screen(text: str, columns: int) -> list[str]:
    """Emulate a terminal and return the lines that are visible at the end."""
    rows: list[list[str]] = [[]]
    row, column = 0, 0
    for control, number, final, character in re.findall(r"(\x1b\[\??([\d;]*)([A-Za-z]))|([^\x1b])", text, re.DOTALL):
        if control:
            if final == "A":
                row = max(row - int(number or 1), 0)
            elif final == "K":
                assert number == "2"
                rows[row] = []
            else:
                assert final in "mhl", control  # colors, and the cursor hidden or shown
        elif character == "\r":
            column = 0
        elif character == "\n":
            row, column = row + 1, 0
            if row == len(rows):
                rows.append([])
        else:
            assert column < columns, "a line ran over the terminal's edge"
            rows[row] += [" "] * (column + 1 - len(rows[row]))
            rows[row][column] = character
            column += 1
    return ["".join(r).rstrip() for r in rows]


@pytest.mark.parametrize("columns", [80, 120, 40])
def test_a_live_bar_in_a_terminal(columns: int) -> None:
    text = run_in_terminal(columns)
    seen = [line for line in screen(text, columns) if line]
    # One bar remains, in its last state, below the printed lines.
    assert seen[0] == "saved [red]ppo_last.pt"
    assert seen[1] == "a line of the environment's"
    assert seen[-1] == "afterwards"
    assert len(seen) == 5, seen
    if columns >= 80:
        assert re.fullmatch(r"PPO \[Hopper-v5\]  ━+  100%  1,000 / 1,000", seen[2])
        assert re.fullmatch(r"4,321 steps/s · done in 0:0\d · evaluation 123\.5 ± 7\.50 · training 99\.00", seen[3])
    assert text.count("\x1b[?25h") == text.count("\x1b[?25l") == 1  # the cursor is restored
    assert len(re.findall(r"\d+%", text)) >= 4  # it was drawn during the run


@pytest.mark.parametrize("columns", [100, 40])
def test_a_line_for_health_below_the_bar(columns: int) -> None:
    # It appears with the first value, after the bar.
    script = RUN.replace("console.progress(1000)", f"console.log({MPO}, 700); console.flush(); console.progress(1000)")
    seen = [line for line in screen(run_in_terminal(columns, script=script), columns) if line]
    assert len(seen) == 6, seen
    health = "η 0.841 · α 9.99 / 1,000 · KL/ε 0.93 / 0.00512 · ESS 14.3 · at floor 0 · skipped 0"
    assert seen[4] == (health if columns == 100 else health[: columns - 1] + "…")
    assert seen[3].startswith("4,321 steps/s · done in ") and seen[-1] == "afterwards"


def test_a_dumb_terminal_gets_plain_lines() -> None:
    text = run_in_terminal(80, term="dumb")
    assert "\x1b" not in text
    assert "100.0%" in text


def test_plain_lines_in_a_pipe() -> None:
    env = os.environ | {"FORCE_COLOR": "1", "PYTHONIOENCODING": "utf-8"}  # set by CI services: still not a terminal
    done = subprocess.run([sys.executable, "-W", "error", "-c", RUN], capture_output=True, env=env, check=True)
    said = done.stdout.decode().splitlines()
    assert "\x1b" not in done.stdout.decode()
    assert [re.sub(r" +", " ", line).split(" steps/s")[0] for line in said] == [
        "saved [red]ppo_last.pt",
        "a line of the environment's",
        "PPO [Hopper-v5] 600 / 1,000 steps 60.0% 4,321",
        "PPO [Hopper-v5] 1,000 / 1,000 steps 100.0% 4,321",
        "afterwards",
    ]
    assert done.stderr == b""


def test_a_broken_pipe_does_not_end_the_run() -> None:
    code = (
        "import sys\n"
        "from minerva.loggers import ConsoleLogger\n"
        "console = ConsoleLogger(10, every_seconds=0.0)\n"
        "sys.stdin.read()\n"
        "for step in range(10):\n"
        "    console.progress(step)\n"
        "console.close()\n"
        "print('and what is printed after it', flush=True)\n"
        "sys.stderr.write('finished')\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    process.stdout.close()  # the reader disappears, as in `minerva train ... | head`
    process.stdin.close()
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=30) == 0
    assert said == b"finished"
