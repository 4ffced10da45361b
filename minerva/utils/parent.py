"""End with the process that started this one, so that a run outlives neither its sweep nor its cluster's node."""

from __future__ import annotations

import os
import signal
import threading
import time

PARENT_VARIABLE = "MINERVA_PARENT"
"""Environment variable with the id of the process that started this one and wants to be survived by nothing."""
_SECONDS = 0.2


def end_with_parent() -> None:
    """Watch the parent process if `PARENT_VARIABLE` asks for it: this one is killed at once when it is gone.

    Killed, not stopped: whoever starts the run again must find that nobody writes into its folder. It costs what
    happened since the last checkpoint, as when the machine fails.
    """
    expected = os.environ.pop(PARENT_VARIABLE, "")  # not for the processes that this one starts
    if not expected.isdigit():
        return

    def watch() -> None:
        while os.getppid() == int(expected):
            time.sleep(_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)

    threading.Thread(target=watch, name="watch the parent process", daemon=True).start()
