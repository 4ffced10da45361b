"""Say when a call of the environments hangs."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable

HANG_SECONDS = 60.0
"""How long a call may take before the user is told."""
LOOKS = 4
"""How often a call is looked at in this time. Looks are counted, and no clock is read: a process that was stopped for
an hour has been looked at once."""


class HangWatch:
    """Warn once about each call of the environments that does not return.

    A daemon thread wakes a few times per minute and looks at a counter, so the loop only counts. The thread ends with
    `close`, or when the watch is garbage. A process that was forked has no such thread and is not watched.

    Args:
        where: Returns what the newest call is busy with.

    Attributes:
        calls: To be increased before and after each call: odd while one is running.
    """

    def __init__(self, where: Callable[[], str]) -> None:
        self.calls = 0
        self._where = weakref.WeakMethod(where)
        self._seen, self._looks = 0, 0
        self._stop = threading.Event()
        threading.Thread(
            target=_look_repeatedly,
            args=(weakref.ref(self), self._stop, HANG_SECONDS / LOOKS),
            name="minerva-hang-watch",
            daemon=True,
        ).start()

    def look(self) -> None:
        """Compare the counter with that of the look before."""
        calls, where = self.calls, self._where()
        if calls % 2 == 0 or calls != self._seen or where is None:
            self._seen, self._looks = calls, 0
            return
        self._looks += 1
        if self._looks == LOOKS:
            warnings.warn(
                f"{where()} has taken more than {HANG_SECONDS:g} seconds for one step or reset; still waiting for it",
                RuntimeWarning,
                stacklevel=2,
            )

    def close(self) -> None:
        """Stop the thread."""
        self._stop.set()


def _look_repeatedly(watch: weakref.ref[HangWatch], stop: threading.Event, interval: float) -> None:
    while not stop.wait(interval):
        watching = watch()
        if watching is None:
            return
        watching.look()
        del watching  # so that it can become garbage
