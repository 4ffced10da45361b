"""A run without torch: it sleeps where a run would learn, and starts, resumes, logs, saves and stops as a run does.

`python sleeping_trainer.py STEPS SECONDS [WHAT …] --resume-or-start --out-dir DIR`, where WHAT is what goes wrong:
"fails" with a sentence, "refuses" with exit code 2, "crashes" without a word, "crashes-once", "deaf" to SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from minerva.utils.folder_lock import FolderLock, LockedError
from minerva.utils.parent import end_with_parent

CHECKPOINT = "ppo_last.pt"
VARIABLES = ("MINERVA_CORES", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "WANDB_RUN_GROUP")


def main() -> int:
    end_with_parent()
    steps, seconds, *wrong = sys.argv[1 : sys.argv.index("--resume-or-start")]
    folder = Path(sys.argv[-1])
    total, stopped = int(steps), False

    def stop(*_: Any) -> None:
        nonlocal stopped
        stopped = "deaf" not in wrong

    signal.signal(signal.SIGTERM, stop)
    lock = FolderLock(folder, folder)
    try:
        lock.acquire()
    except LockedError as error:
        print(f"minerva: {error}", file=sys.stderr)
        return 2
    path = folder / CHECKPOINT
    state: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"steps": 0, "starts": []}
    first = not state["starts"]
    state["starts"].append({name: os.environ.get(name) for name in VARIABLES})
    _save(path, state)
    with (folder / "metrics.csv").open("a") as log:
        if first:
            log.write("step,name,value\n")
            (folder / "ppo_last.replay").mkdir()
        begin, before = time.monotonic(), state["steps"]
        while state["steps"] < total and not stopped:
            if 2 * state["steps"] >= total:
                if "fails" in wrong or "refuses" in wrong:
                    print("minerva: env: it fell over.", file=sys.stderr)
                    return 1 + ("refuses" in wrong)
                if "crashes" in wrong or ("crashes-once" in wrong and first):
                    os.kill(os.getpid(), signal.SIGKILL)
            state["steps"] += 1
            # By the clock: on a busy machine, what each sleep takes too long would add up.
            due = begin + (state["steps"] - before) * float(seconds) / total
            time.sleep(max(due - time.monotonic(), 0.0))
            log.write(f"{state['steps']},eval/return_mean,{-state['steps']}\n")
            log.flush()
            _save(path, state)
    lock.release()
    return 143 if stopped else 0


def _save(path: Path, state: dict[str, Any]) -> None:
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(state))
    temporary.replace(path)


if __name__ == "__main__":
    sys.exit(main())
