"""Draw speed measurements: where the time of a training step goes."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

SPEED = Path(__file__).parent.parent / "benchmarks/results/speed"
PARTS = ("simulating", "acting", "rest", "updating")
WIDTH, BAR, GAP, LEFT, RIGHT = 480, 18, 8, 130, 74


def time_shares(folder: str, uri: str) -> str:
    """Draw one bar per `minerva bench` measurement in a folder of the results: the shares of a step's time.

    All bars have the same length because they show shares; the steps per second stand beside them.
    """
    files = sorted((SPEED / folder).glob("*.json"))
    if not files:
        raise ValueError(f"there is no measurement in {SPEED / folder}")
    measurements = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    height = len(measurements) * (BAR + GAP) + 22
    bars = "".join(_bar(one, k * (BAR + GAP)) for k, one in enumerate(measurements))
    words = "; ".join(f"{_name(one)}: {_shares_in_words(one)}" for one in measurements)
    return (
        f'<figure class="shares"><svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{html.escape(words)}">'
        f"{bars}{_legend(height - 8)}</svg></figure>"
    )


def _bar(one: dict[str, Any], top: float) -> str:
    length, x, drawn = WIDTH - LEFT - RIGHT, float(LEFT), []
    for part in PARTS:
        width = one["shares"][part] * length
        title = f"{part} {one['shares'][part]:.0%}"
        where = f'x="{x:.1f}" y="{top}" width="{width:.1f}" height="{BAR}"'
        drawn.append(f'<rect class="shares__{part}" {where}><title>{title}</title></rect>')
        if width > 30:
            drawn.append(
                f'<text x="{x + width / 2:.1f}" y="{top + 12.5}" text-anchor="middle">{title[-3:].strip()}</text>'
            )
        x += width
    name, rate = html.escape(_name(one)), f"{one['steps_per_second']:,.0f} steps/s"
    return (
        f'<text class="shares__name" x="{LEFT - 6}" y="{top + 12.5}" text-anchor="end">{name}</text>{"".join(drawn)}'
        f'<text class="shares__name" x="{WIDTH - RIGHT + 5}" y="{top + 12.5}">{rate}</text>'
    )


def _legend(baseline: float) -> str:
    drawn, x = [], float(LEFT)
    for part in PARTS:
        drawn.append(f'<rect class="shares__{part}" x="{x:.0f}" y="{baseline - 8}" width="9" height="9"/>')
        drawn.append(f'<text class="shares__name" x="{x + 13:.0f}" y="{baseline}">{part}</text>')
        x += 75
    return "".join(drawn)


def _name(one: dict[str, Any]) -> str:
    names = {"ppo": "PPO", "mpo": "MPO", "vmpo": "V-MPO"}
    return f"{names[one['algorithm']]}, {one['settings']['num_envs']} × {one['env_id'].rpartition('/')[2]}"


def _shares_in_words(one: dict[str, Any]) -> str:
    return ", ".join(f"{part} {one['shares'][part]:.0%}" for part in PARTS)
