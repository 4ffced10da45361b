"""A run that learns nothing: its evaluations follow from its settings, so that a test knows what a search must find.

`python instant_trainer.py train ppo --policy-lr=X … --seed N --resume-or-start --out-dir DIR`. Ten evaluations go up to
-(log10 X + 2)², which is best at 0.01. The runs of seed 9 fail. It sleeps for a while, so that there is something to
stop.
"""

from __future__ import annotations

import math
import signal
import sys
import time
from pathlib import Path
from typing import Any

EVALUATIONS = 10
SECONDS = 0.4


def main() -> int:
    words = sys.argv[1:]
    options = dict(word.removeprefix("--").split("=", 1) for word in words if word.startswith("--") and "=" in word)
    folder, seed = Path(words[-1]), words[words.index("--seed") + 1]
    stopped = False

    def stop(*_: Any) -> None:
        nonlocal stopped
        stopped = True

    signal.signal(signal.SIGTERM, stop)
    with (folder / "starts").open("a") as starts:
        starts.write("x")
    if seed == "9":
        print("minerva: env: it fell over.", file=sys.stderr)
        return 2
    log = folder / "metrics.csv"
    rows = log.read_text().splitlines(keepends=True) if log.exists() else ["step,name,value\n"]
    reached = -((math.log10(float(options["policy-lr"])) + 2) ** 2)
    for count in range(len(rows), EVALUATIONS + 1):
        if stopped:
            return 143
        time.sleep(SECONDS / EVALUATIONS if reached > -1 else SECONDS)  # a bad one is slow
        rows.append(f"{count},eval/return_mean,{reached - (EVALUATIONS - count)}\n")
        log.write_text("".join(rows))
    (folder / "ppo_last.pt").touch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
