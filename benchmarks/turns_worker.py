"""Train, one turn for each line of the standard input; `benchmarks.turns` starts it with either version's code."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from typing import Any

import minerva
from minerva.callbacks import Callback


class Turns(Callback):
    """At the start of each rollout, print the processor's seconds of the turn, and wait for a line."""

    started: float | None = None

    def on_rollout_start(self, trainer: Any) -> None:
        """End a turn and begin the next."""
        print(f"turn {'ready' if self.started is None else time.process_time() - self.started}", flush=True)
        if not sys.stdin.readline():
            sys.exit()
        self.started = time.process_time()


if __name__ == "__main__":
    env, fields = json.loads(sys.argv[1])
    trainer_class: Any = {"ppo": minerva.PPOTrainer, "vmpo": minerva.VMPOTrainer}[fields.pop("algorithm")]
    with tempfile.TemporaryDirectory() as folder:
        trainer_class(env, seed=1, eval_interval=10**12, **fields).train(10**12, folder, callbacks=[Turns()])
