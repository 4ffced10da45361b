"""Draw speed measurements: where the time of a training step goes."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

SPEED = Path(__file__).parent.parent / "benchmarks/results/speed"
PARTS = ("simulating", "acting", "rest", "updating")


def time_shares(folder: str, uri: str) -> str:
    """Draw one bar per `minerva bench` measurement in a folder of the results: the shares of a step's time.

    All bars have the same length because they show shares; the steps per second stand above them, the numbers below.
    """
    files = sorted((SPEED / folder).glob("*.json"))
    if not files:
        raise ValueError(f"there is no measurement in {SPEED / folder}")
    runs = (_run(json.loads(file.read_text(encoding="utf-8"))) for file in files)
    return f'<figure class="shares">{"".join(runs)}</figure>'


def _run(one: dict[str, Any]) -> str:
    parts, bar = [], []
    for part in PARTS:
        share = one["shares"][part]
        bar.append(f'<span class="shares__{part}" style="width:{100 * share:.2f}%"></span>')
        percent = "&lt;1%" if 0 < share < 0.005 else f"{share:.0%}"
        parts.append(f'<span><i class="shares__{part}"></i>{part} {percent}</span>')
    return (
        f'<div class="shares__run"><div class="shares__head"><strong>{html.escape(_name(one))}</strong>'
        f"<span>{one['steps_per_second']:,.0f} steps/s</span></div>"
        f'<div class="shares__bar" aria-hidden="true">{"".join(bar)}</div>'
        f'<div class="shares__parts">{"".join(parts)}</div></div>'
    )


def _name(one: dict[str, Any]) -> str:
    names = {"ppo": "PPO", "mpo": "MPO", "vmpo": "V-MPO"}
    count = one["settings"]["num_envs"]
    task = one["env_id"].rpartition("/")[2]
    return f"{names[one['algorithm']]} on {task}, {count} environment{'s' * (count != 1)}"
