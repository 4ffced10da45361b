"""Show a run in the console: a live progress bar in a terminal or a notebook, plain lines elsewhere."""

from __future__ import annotations

import io
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TextIO

from minerva.loggers.base import Logger
from minerva.utils.notebook import LiveOutput, in_notebook

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

_BAR_SECONDS = 0.25  # drawing takes about one millisecond: well under 1% of the run's time
_NOTEBOOK_SECONDS = 0.5  # drawing takes a few milliseconds there
_NOTEBOOK_WIDTH = 100
_NOTEBOOK_HTML = '<pre style="font-family: monospace; white-space: pre; margin: 0">{code}</pre>'
_RATE_SECONDS = 120.0  # the remaining time is estimated from the speed of the last two minutes
# Metrics of the optimization's health: label, label in ASCII, and the metrics shown, where the run has them. The most
# important come first, because a narrow terminal cuts the line.
_HEALTH = (
    ("η", "eta", ("eta", "vmpo/temperature_raw")),
    ("α", "alpha", ("alpha_mean", "alpha_std", "vmpo/alpha_mu", "vmpo/alpha_sigma", "vmpo/alpha")),
    ("KL/ε", "KL/eps", ("health/kl_mean_ratio", "health/kl_std_ratio", "health/kl_ratio")),
    ("ESS", "ESS", ("health/ess", "vmpo/ess")),
    ("selected", "selected", ("vmpo/selected_frac",)),
    ("at floor", "at floor", ("health/dual_saturation",)),
    ("skipped", "skipped", ("health/skipped",)),
)


class ConsoleLogger(Logger):
    """Show the progress of a run: steps, speed, remaining time and the newest returns.

    For MPO and V-MPO it also shows the health of the optimization: multipliers, KL divergences divided by their bounds
    (of the mean / of the standard deviation), effective sample size, and skipped updates.

    In a terminal and in a notebook this is a bar that changes in place. Elsewhere it is plain lines: one every few
    seconds, one at each evaluation and one at the end. If the reader disappears (a closed pipe, a lost terminal), the
    output stops and the run continues.

    Args:
        total_steps: Environment steps at which the run ends.
        start_step: Environment step at which it starts: 0, or that of the checkpoint it resumes from.
        title: Name of the run, shown first.
        stream: Output stream; standard output by default.
        every_seconds: Seconds between two plain lines.
        clock: Monotonic clock in seconds.
    """

    def __init__(
        self,
        total_steps: int,
        start_step: int = 0,
        title: str = "",
        stream: TextIO | None = None,
        every_seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total_steps
        self._step = start_step
        self._title = title
        self._clock = clock
        self._metrics: dict[str, float] = {}
        self._out = _Output(sys.stdout if stream is None else stream)
        self._closed = False
        self._shown_at: int | None = None  # the step of the newest plain line
        self._live: Live | None = None
        self._notebook = LiveOutput() if stream is None and in_notebook() else None
        self._console: Console | None = None
        self._started = now = clock()
        # (time, step) about once per second: the window over which the speed is measured
        self._marks: deque[tuple[float, int]] = deque([(now, start_step)])
        if self._notebook is not None:
            self._every = _NOTEBOOK_SECONDS
            self._show_in(self._notebook)
        elif self._out.is_terminal():
            self._every = _BAR_SECONDS
            self._start_bar(own_stdout=stream is None)
        else:
            self._every = every_seconds
        self._next = now + self._every

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Store the newest values; show them at once after an evaluation."""
        self._metrics.update(metrics)
        self._step = max(self._step, step)
        if self._closed:
            return
        if "eval/return_mean" in metrics:
            self._show()
        else:
            self.progress(self._step)

    def progress(self, step: int) -> None:
        """Store the environment step and redraw if it is time. Called in the innermost loop, so it must be cheap."""
        self._step = step
        if self._clock() >= self._next and not self._closed:
            self._show()

    def message(self, text: str) -> None:
        """Print a separate line, above the bar."""
        if self._live is not None and self._console is not None:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            self._out.line(text)

    def flush(self) -> None:
        """Show the newest values in a bar; plain lines keep their interval."""
        if self._live is not None or self._notebook is not None:
            self._show()

    def close(self) -> None:
        """Show the last values and restore the terminal; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._live is not None:
            self._live.stop()  # draws once more
            self._live = None
        elif self._notebook is not None:
            self._show_in(self._notebook)
        elif not self._shown_at == self._step >= self._total:  # otherwise the final evaluation has shown the last line
            self._out.line(self._line())

    def _show(self) -> None:
        now = self._clock()
        self._next = now + self._every
        if now - self._marks[-1][0] >= 1.0:
            self._marks.append((now, self._step))
            while now - self._marks[0][0] > _RATE_SECONDS and len(self._marks) > 2:
                self._marks.popleft()
        if self._live is not None:
            self._live.refresh()
        elif self._notebook is not None:
            self._show_in(self._notebook)
        else:
            self._out.line(self._line())
            self._shown_at = self._step

    # What is shown

    def _line(self) -> str:
        parts = [
            *([self._title] if self._title else []),
            f"{self._steps()} steps",
            f"{self._fraction():6.1%}",
            *self._facts(),
            *self._health(),
        ]
        return "  ".join(parts)

    def _facts(self) -> list[str]:
        """Return speed, remaining time and returns, as far as they are known."""
        pace = self._pace()
        steps_per_second = self._metrics.get("charts/SPS", pace)
        facts = []
        if math.isfinite(steps_per_second) and steps_per_second > 0:
            facts.append(f"{steps_per_second:,.0f} steps/s{self._evaluation_share()}")
        taken = duration(self._clock() - self._started)
        if self._step >= self._total:
            facts.append(f"done in {taken}")
        elif self._closed:
            facts.append(f"stopped after {taken}")
        else:
            # Not from charts/SPS, the mean of the whole run: speed may have changed.
            facts.append(f"{duration((self._total - self._step) / pace)} left" if pace > 0 else "-:-- left")
        if "eval/return_mean" in self._metrics:
            text = f"evaluation {_number(self._metrics['eval/return_mean'])}"
            if "eval/return_std" in self._metrics:
                text += f" {self._out.plus_minus} {_number(self._metrics['eval/return_std'])}"
            facts.append(text)
        if "train/episode_return" in self._metrics:
            facts.append(f"training {_number(self._metrics['train/episode_return'])}")
        return facts

    def _evaluation_share(self) -> str:
        """Say which part of the time evaluations took, where it is at least half a percent."""
        whole, training = (self._metrics.get(f"charts/{name}", math.nan) for name in ("SPS", "SPS_training"))
        share = 1 - whole / training if training > 0 else math.nan
        return f" ({share:.0%} evaluating)" if share >= 0.005 else ""

    def _health(self) -> list[str]:
        """Return the health metrics of the optimization, as far as they are known."""
        facts = []
        for label, plain, metrics in _HEALTH:
            values = [_short(self._metrics[name]) for name in metrics if name in self._metrics]
            if values:
                facts.append(f"{self._out.if_encodable(label, plain)} {' / '.join(values)}")
        return facts

    def _steps(self) -> str:
        total = f"{self._total:,}"
        return f"{self._step:>{len(total)},} / {total}"

    def _fraction(self) -> float:
        return min(self._step / self._total, 1.0) if self._total > 0 else 1.0

    def _pace(self) -> float:
        """Return the environment steps per second of wall-clock time, over the last two minutes."""
        then, step = self._marks[0]
        seconds = self._clock() - then
        return (self._step - step) / seconds if seconds > 0 else 0.0

    # The bar

    def _start_bar(self, own_stdout: bool) -> None:
        # Imported here: it would double the import time of this package.
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=self._out, force_terminal=True, force_jupyter=False)  # type: ignore[arg-type]
        self._live = Live(
            console=self._console,
            get_renderable=self._bar,
            # Drawn by `progress`, not by a thread: if an environment forks while a thread holds a lock, the lock stays
            # locked in the child process.
            auto_refresh=False,
            # A print or a warning of the run then appears above the bar. Output to a file or to another stream than the
            # bar's is not redirected.
            redirect_stdout=own_stdout,
            redirect_stderr=own_stdout and sys.stderr is not None and sys.stderr.isatty(),
        )
        self._live.start(refresh=True)

    def _show_in(self, notebook: LiveOutput) -> None:
        from rich.console import Console

        canvas = Console(
            file=io.StringIO(), record=True, width=_NOTEBOOK_WIDTH, color_system="truecolor", force_jupyter=False
        )
        canvas.print(self._bar())
        text = canvas.export_text(clear=False).rstrip("\n")
        notebook.show(canvas.export_html(code_format=_NOTEBOOK_HTML, inline_styles=True), text)

    def _bar(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        line = Table.grid(padding=(0, 2, 0, 0), expand=True)
        if self._title:
            line.add_column(no_wrap=True, overflow="ellipsis", max_width=40)
        line.add_column(ratio=1, min_width=8)
        line.add_column(no_wrap=True, justify="right")
        bar = ProgressBar(total=max(self._total, 1), completed=self._step if self._total > 0 else 1)
        cells: list[RenderableType] = [Text(self._title, style="bold")] if self._title else []
        line.add_row(*cells, bar, Text(f"{self._fraction():.0%}  {self._steps()}"))
        # Lines are never wrapped: wrapped lines leave traces when the window becomes narrower.
        rows = [f" {self._out.dot} ".join(facts) for facts in (self._facts(), self._health()) if facts]
        return Group(line, *(Text(row, no_wrap=True, overflow="ellipsis") for row in rows))


class _Output:
    """A text stream whose reader may disappear; later output is then discarded."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream  # None: a process without standard output
        self.encoding: str = getattr(stream, "encoding", None) or "utf-8"
        self.plus_minus = self.if_encodable("±", "+/-")
        self.dot = self.if_encodable("·", "|")

    def line(self, text: str) -> None:
        """Write a line and flush it."""
        self.write(text + "\n")
        self.flush()

    def write(self, text: str) -> int:
        """Write text; replace characters that the stream cannot encode."""
        if self._stream is not None:
            try:
                try:
                    self._stream.write(text)
                except UnicodeEncodeError:
                    self._stream.write(text.encode(self.encoding, "replace").decode(self.encoding))
            except (OSError, ValueError) as error:
                self._drop_stream(error)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        if self._stream is not None:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._drop_stream(error)

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        try:
            return self._stream is not None and self._stream.isatty()
        except (OSError, ValueError):
            return False

    def is_terminal(self) -> bool:
        """Return whether the stream is a terminal that can move its cursor."""
        return self.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")

    def fileno(self) -> int:
        """Return the stream's file descriptor."""
        if self._stream is None:
            raise OSError("there is no stream")
        return self._stream.fileno()

    def _drop_stream(self, error: Exception) -> None:
        if isinstance(error, BlockingIOError):
            return  # a slow terminal: the next line may succeed
        stream, self._stream = self._stream, None
        if (
            isinstance(error, OSError)
            and stream is not None
            and any(stream is s for s in (sys.__stdout__, sys.__stderr__))
        ):
            # Text left in the stream's buffer would raise again at exit and change the exit code to a failure
            # (https://docs.python.org/3/library/signal.html#note-on-sigpipe).
            try:
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, stream.fileno())
                os.close(null)
            except (OSError, ValueError):
                pass

    def if_encodable(self, text: str, otherwise: str) -> str:
        """Return the text, or another if the stream cannot encode it."""
        try:
            text.encode(self.encoding)
        except (UnicodeEncodeError, LookupError):
            return otherwise
        return text


def _number(value: float) -> str:
    """Format a return with one or two decimals."""
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.2f}"


def _short(value: float) -> str:
    """Format a value of any size with three significant digits, and integers in full."""
    return f"{value:,.0f}" if 100 <= abs(value) < 1e6 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Format seconds as m:ss, or as h:mm:ss from one hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
