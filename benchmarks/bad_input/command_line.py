"""Command lines with a mistake: each must end with exit code 2 and one sentence.

Most run in this process, through `minerva.cli.main`, with a time limit. One in ten, and those that may bring a process
down, run in a process of their own, so that a crash or an endless wait of it shows.
"""

from __future__ import annotations

import contextlib
import io
import random
import shlex
import signal
import subprocess
import sys
import typing
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

from benchmarks.bad_input import Result
from minerva import api
from minerva.cli import main
from minerva.cli.options import setting_groups
from minerva.utils.ranges import shown
from minerva.utils.schedules import Schedule

COUNT = 400
SECONDS = 120
"""Time that a command may take before it counts as a hang, on a busy machine."""
NOWHERE = "no/such/folder"
MINUS = 5_000 * "-"

NUMBERS = ["nan", "inf", "-inf", "1e999", "1e300", "-1e300", "ten", "1,5", "1j", "[1]", MINUS, f"{MINUS}1", "'1'", "()"]
WHOLE = ["1.5", "1e3", "True", "0x10", str(2**63), str(-(2**63) - 1), "9" * 23, "9" * 5000, "-" + "9" * 5000]
PAIRS = [
    "x", "=", "=1", "g={[]:1}", "g={{1}}", f"g={MINUS}1", f"g={'[' * 5000}",
    f"g={'9' * 20000}", f"g={2**64}", "g={1:2}", "g=b'1'", "g=1j", "unknown=1", "max_episode_steps=x", "render_mode=7",
    "disable_env_checker=1", "id=x", "g=[1j]", f"g={40 * '['}1{40 * ']'}",
]  # fmt: skip
ENVIRONMENTS = [
    "GymV21Environment-v0", "GymV26Environment-v0", "Ant-v2", "Pusher-v4", "phys2d/CartPole-v1", "Pendulum",
    "pendulum-v1",
    "dm_control/", "dm_control/x/y", "dm_control/cheetah/run/x", "ALE/Nothing-v5", "no_such_module:Env-v0", ":", "..:x",
    "a:b:c", "../x", "x" * 5000, "Pendulum-v999", "Pendulum-v1 ", "\udcff", "CartPole-v1/", "-v1", "%s", "{}", "日本",
]  # fmt: skip
DEVICES = [
    "meta", "mps", "xpu", "hpu", "vulkan", "cpu:1", "cpu:-1", "cuda:x", "cuda:999", f"cuda:{'9' * 23}", "", "gpu",
    "CPU",
    "none", MINUS[:50], "privateuseone", "mkldnn", "lazy", "xla", "x" * 5000,
]  # fmt: skip
OTHERS: list[list[str]] = [
    ["trian"], ["evaluate"], ["plot"], ["annotate"], ["annotate", "."], ["train", "sac"],
    ["train", ""],
    ["bench", "--env", "Pendulum-v1"], ["train", "--env", "Pendulum-v1"], ["train", "ppo"], ["bench", "mpo"],
    [MINUS], [""],
    ["train", MINUS], ["evaluate", NOWHERE], ["evaluate", NOWHERE, "--best"], ["evaluate", NOWHERE, "--episodes", "0"],
    ["evaluate", NOWHERE, "--episodes", "9" * 23], ["evaluate", "/dev/null"], ["evaluate", "."], ["plot", NOWHERE],
    ["evaluate", NOWHERE, "--seed", "x"], ["plot", NOWHERE, NOWHERE], ["plot", ".", "--metric", ""], ["presets", "sac"],
    ["presets", "../ppo"], ["envs", "no such environment"], ["envs", "x", "y"], ["train", "--resume", NOWHERE],
    ["train", "ppo", "--resume", NOWHERE], ["train", "--resume", "."], ["train", "--resume="], ["train", "--resume"],
    ["train", "--resume", NOWHERE, "--total-steps", "x"], ["train", "--resume", NOWHERE, "--gamma", "0.9"],
    ["annotate", NOWHERE, "--check"], ["annotate", NOWHERE, "--out", NOWHERE], ["--train"], ["-x"], ["help", "--x"][1:],
]  # fmt: skip
DANGEROUS: list[list[str]] = [
    ["--torch-threads", "100000"], ["--pool-threads", "100000"], ["--num-envs", "99999999999"], ["--device", "meta"],
    ["--eval-episodes", "9" * 23], ["--policy-layer-sizes", "1000000000", "1000000000"],
    ["--env-kwargs", f"g={MINUS}1"],
    ["--policy-layer-sizes", *25 * ["16384"]], ["--rollout-steps", "10000000", "--num-envs", "60000"],
    ["--env-kwargs", "g={[]:1}"], ["--env-kwargs", f"g={100_000 * '-'}1"], ["--env-kwargs", f"g={50_000 * '['}"],
    ["--env-kwargs", f"g={30_000 * '{1:'}"], ["--total-steps", "9" * 23], ["--seed", "9" * 23],
    ["--num-workers", "99999"],
    ["--lstm-units", "9999999999"], ["--update-epochs", "9" * 15], ["--minibatch-size", str(2**62)],
    ["--env", "Pusher-v4"],
    ["--num-envs", "1000000", "--vectorization", "subprocess"], ["--env", "GymV21Environment-v0"],
]  # fmt: skip


class TimedOutError(BaseException):
    """The time limit of a command: nothing on the way catches it."""


def commands(generator: random.Random) -> list[list[str]]:
    """Return wrong command lines: each option of `train` with each bad value, and what is wrong besides."""
    found = [list(words) for words in OTHERS]
    for algo in api.ALGORITHMS:
        start = [generator.choice(["train", "bench"]), algo, "--env", "Pendulum-v1"]
        for settings in setting_groups(api.config_class(algo)).values():
            for setting in settings:
                flag = f"--{setting.name.replace('_', '-')}"
                found += [[*start, flag, *value.split(" ")] for value in bad_texts(setting.kind)]
                found.append([*start, f"{flag}x", "1"])
        found += [[*start, "--device", device] for device in DEVICES]
        found += [["train", algo, "--env", env] for env in ENVIRONMENTS]
        for flag in ("--seed", "--total-steps"):
            found += [[*start, flag, value] for value in (*NUMBERS, *WHOLE, "-1")]
        found += [[*start, *words] for words in (["--init-from", NOWHERE], ["--preset", "x"], ["stray"], ["-5"])]
        bench = ["bench", *start[1:]]
        found += [[*bench, "--seconds", value] for value in (*NUMBERS, "0", "-1")]
        found += [[*bench, "--steps", value] for value in (*NUMBERS, *WHOLE, "0")]
        found += [[*bench, "--json", value] for value in (".", f"{NOWHERE}/x.json")]
    generator.shuffle(found)
    return found


def bad_texts(kind: Any) -> list[str]:
    """Return texts that no option of this type may have."""
    options = {kind, *typing.get_args(kind)}
    if kind is str:  # any text
        return []
    if kind is bool:
        return ["5", "yes"]
    if dict in {typing.get_origin(option) for option in options}:
        return [pair for pair in PAIRS if " " not in pair]
    if kind in (Schedule, Schedule | None):
        return [*NUMBERS, "lin_nan", "const_inf", "lin_", "_1", "linear_3", "cos_-1", "exp_1e400", "function "]
    if typing.get_origin(kind) is tuple:
        return [*NUMBERS, *WHOLE, "0", "-5", "64 0", "64 x", "16384 16384 16384", ""]
    return [*NUMBERS, *WHOLE] if int in options else NUMBERS


def results(count: int, seed: int) -> Iterator[Result]:
    """Run `count` commands."""
    generator = random.Random(seed)
    dangerous = [["train", "ppo", "--env", "Pendulum-v1", "--preset", "none", *words] for words in DANGEROUS]
    generator.shuffle(dangerous)
    found: list[list[str]] = []
    while len(found) < count:
        found += commands(generator)
    for k, words in enumerate(found[:count]):
        if k % 10 == 9:
            printable = all("\0" not in word and len(word) < 100_000 for word in words)
            yield in_a_process(dangerous.pop() if dangerous or not printable else words)
        else:
            yield in_this_process(words)


def in_this_process(words: list[str]) -> Result:
    """Run a command through `main`."""
    out, err = io.StringIO(), io.StringIO()
    before = signal.signal(signal.SIGALRM, _stop)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code: int | str = main(words)
    except TimedOutError:
        code = "hang"
    except Exception as error:
        code, err = "traceback", io.StringIO(f"{type(error).__name__}: {error}")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return _judge(words, code, err.getvalue())


def in_a_process(words: list[str]) -> Result:
    """Run a command as a user does."""
    command = [sys.executable, "-m", "minerva.cli", *words]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return _judge(words, "hang", "")
    return _judge(words, done.returncode, done.stderr)


def _judge(words: list[str], code: int | str, said: str) -> Result:
    case = f"minerva {shlex.join(word if len(word) < 200 else shown(word) for word in words)}"
    # Gymnasium's own warnings about an environment are lines of their own.
    lines = [line for line in said.splitlines() if not line.startswith("minerva: warning: ")]
    sentence = len(lines) == 1 and lines[0].startswith("minerva: ")
    message = " / ".join(lines[-3:])[:1000]
    if code == "hang":
        return Result("command_line", case, "hang", message)
    if code == "traceback" or "Traceback" in said:
        return Result("command_line", case, "traceback", message)
    if code == 0:
        return Result("command_line", case, "accepted", message)
    if isinstance(code, int) and (code < 0 or not lines):
        return Result("command_line", case, "crash", f"exit code {code}: {message}")
    if code == 2 and sentence:
        return Result("command_line", case, "refused", message)
    return Result("command_line", case, "traceback", f"exit code {code}: {message}")


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise TimedOutError
