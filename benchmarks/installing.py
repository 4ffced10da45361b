"""Install each extra into an empty environment with pip 23.2.1, as README says, and run what README shows for it.

    python benchmarks/installing.py --out benchmarks/results/installing.json
    python benchmarks/installing.py --only box2d atari

A command of README gets few steps and the CPU; nothing else about it changes. Where a package is missing, the command
must name the one extra that installs it. This script needs no package itself, and 3 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PIP = "23.2.1"  # what Python 3.11 brings
README = (ROOT / "README.md").read_text()
PROMISED = re.search(r'pip install (-c constraints\.txt -e "\.\[.*\]")', README)
# What an extra is needed for, in a command of README; the first that fits.
NEEDS = {
    "report": r"minerva plot", "envpool": r"envpool", "box2d": r"LunarLander|CarRacing", "atari": r"ALE/",
    "tracking": r"--tensorboard|--wandb", "dm-control": r"dm_control/", "mujoco": r"HalfCheetah-v5|Hopper-v5",
    "ray": r"--on ray|--rollout-workers", "tune": r"minerva tune",
}  # fmt: skip
# What the pages of the site show for extras that README only names.
PAGES = [
    "minerva train ppo --env HalfCheetah-v5 --num-envs 64 --backend envpool",
    "minerva train ppo --env ALE/Pong-v5",
    "minerva train ppo --env Pendulum-v1 --tensorboard",
    "minerva train ppo --env Pendulum-v1 --wandb offline",
]
# What the commands of README read: the first specification of each page, made small.
SPECS = {"spec.toml": "sweeps", "tune.toml": "tune"}
SMALLER = [
    (r"total_steps = [0-9_]+", "total_steps = 8192"), (r'seeds = ".*"', 'seeds = "1"'), (r"\[grid\.ppo\]\n.*", ""),
    (r"trials = \d+", "trials = 6"),
]  # fmt: skip
# What the tutorial plots, for the extra `report` alone.
TUTORIAL = ["minerva train ppo --env Pendulum-v1 --out-dir runs/first", "minerva plot runs/first"]
SITE = "NO_MKDOCS_2_WARNING=1 python -m mkdocs build --strict"


def commands() -> list[str]:
    """Return the commands of README and of pages, in their order."""
    lines = re.findall(r"^    ((?:minerva|python -m) .*?)(?:  +#.*)?$", README, re.MULTILINE)
    return [*lines, *PAGES]


def write_specs(folder: Path) -> None:
    """Write the specifications that commands of README read."""
    for name, page in SPECS.items():
        block = re.search(r"```toml\n(.*?)```", (ROOT / "docs" / "how-to" / f"{page}.md").read_text(), re.DOTALL)
        assert block is not None
        text = block[1]
        for pattern, smaller in SMALLER:
            text = re.sub(pattern, smaller, text)
        (folder / name).write_text(text)


def extra_of(command: str) -> str:
    """Return the extra that a command needs, or an empty string."""
    return next((extra for extra, pattern in NEEDS.items() if re.search(pattern, command)), "")


def short(command: str, folder: Path) -> str:
    """Return a command with few steps, on the CPU, and with the newest run where README has "…"."""
    if command.startswith("minerva bench"):
        command += " --seconds 2"
    elif "--seeds" in command:
        command = re.sub(r"--seeds \S+", "--seeds 1-2", command) + " --total-steps 4096 --eval-episodes 1"
    elif "minerva train" in command and "--resume" not in command:
        steps = 16384 if "envpool" in command else 2048 if "ALE/" in command or " mpo " in command else 4096
        command += f" --total-steps {steps} --eval-episodes 1"
    elif command.endswith("script.py"):
        command = command.replace("script.py", str(ROOT / "benchmarks/old_scripts/01_quickstart.py"))
    if command.endswith("…"):
        runs = sorted(folder.glob(shlex.split(command)[-1].replace("…", "*")), key=lambda run: run.stat().st_mtime)
        command = command[: command.rindex(" ")] + f" {runs[-1]}"
    return command.replace("--device cuda", "--device cpu")


def run(command: str, folder: Path, python: Path, expected: int = 0) -> tuple[str, float]:
    """Run a command with an environment's programs first; return what it printed and its seconds."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    own |= {"PATH": f"{python.parent}:{own['PATH']}", "OMP_NUM_THREADS": "1"}
    started = time.monotonic()
    done = subprocess.run(command, shell=True, cwd=folder, env=own, text=True, stdout=-1, stderr=subprocess.STDOUT)
    if done.returncode != expected:
        raise SystemExit(f"exit code {done.returncode}, not {expected}: {command}\n{done.stdout[-3000:]}")
    return done.stdout, round(time.monotonic() - started, 1)


def install(line: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Make an empty environment and install Minerva into it; return its Python and what was installed."""
    python = folder / "venv" / "bin" / "python"
    run(f"{sys.executable} -m venv venv && {python} -m pip install -q pip=={PIP}", folder, python)
    said, seconds = run(f"cd {ROOT} && {python} -m pip install {line}", folder, python)
    if "does not provide the extra" in said:
        raise SystemExit(said[-3000:])
    frozen, _ = run(f"{python} -m pip freeze --exclude-editable", folder, python)
    versions = dict(row.split("==") for row in frozen.split() if "==" in row)
    return python, {"install": f"pip install {line}", "seconds": seconds, "ran": {}, "versions": versions}


def examine(extras: str) -> dict[str, Any]:
    """Install some extras and run all commands that need no other, and for an empty list also those that lack one."""
    have = set(extras.split(","))
    with tempfile.TemporaryDirectory(prefix="minerva-installing-") as name:
        folder = Path(name)
        line = f'-c constraints.txt -e ".[{extras}]"' if extras else "-c constraints.txt -e ."
        python, result = install(line, folder)
        write_specs(folder)
        wanted = [command for command in commands() if extra_of(command) in have]
        if extras == "report":
            wanted = TUTORIAL
        elif extras == "docs":
            wanted = [f"cd {ROOT} && {SITE} --site-dir {folder / 'site'}"]
        for command in wanted:
            shown = command.replace(f"{ROOT}", ".").replace(name, "…")
            _, result["ran"][shown] = run(short(command, folder), folder, python)
        if {"mujoco", "report"} <= have:
            script = re.search(r"```python\n(.*?)```", README, re.DOTALL)
            assert script is not None
            (folder / "ten_lines.py").write_text(script[1].replace("60_000", "4_096"))
            result["ran"]["In ten lines"] = run("python ten_lines.py", folder, python)[1]
        if not extras:
            result["told"] = {command: told(command, folder, python) for command in lacking()}
    return result


def lacking() -> list[str]:
    """Return a command per extra that cannot run without it."""
    extra_only = {extra_of(command): command for command in reversed(commands())}
    return [command for extra, command in sorted(extra_only.items()) if extra and extra not in ("report", "tracking")]


def told(command: str, folder: Path, python: Path) -> str:
    """Run a command that lacks a package; return its message, which must name the one extra that is needed."""
    message, _ = run(short(command, folder), folder, python, expected=2)
    if re.findall(r"pip install .*?\[(.*?)\]", message) != [extra_of(command)]:
        raise SystemExit(f"{command} must name the extra {extra_of(command)!r} alone:\n{message}")
    return message.strip()


def resolve_peers() -> dict[str, Any]:
    """Let pip resolve the extra `peers` beside the rest, without installing it."""
    with tempfile.TemporaryDirectory(prefix="minerva-installing-") as name:
        folder = Path(name)
        python, _ = install("-c constraints.txt -e .", folder)
        line = '-c constraints.txt --dry-run -e ".[peers]"'
        said, seconds = run(f"cd {ROOT} && {python} -m pip install {line}", folder, python)
        return {"install": f"pip install {line}", "seconds": seconds, "would_install": said.splitlines()[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="*", help="extras (default: all); 'none' for no extra")
    options = parser.parse_args()
    assert PROMISED is not None
    together = re.search(r"\[(.*)\]", PROMISED[1])
    assert together is not None
    all_extras = ["none", together[1], *NEEDS, "docs", "peers"]
    found: dict[str, Any] = {"python": sys.version.split()[0], "pip": PIP, "extras": {}}
    if options.out is not None and options.out.exists():  # what is not examined now stays
        found["extras"] = json.loads(options.out.read_text())["extras"]
    for extras in options.only or all_extras:
        found["extras"][extras] = resolve_peers() if extras == "peers" else examine("" if extras == "none" else extras)
        print(f"{extras}: {len(found['extras'][extras].get('ran', {}))} commands ran", flush=True)
        if options.out is not None:
            options.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
