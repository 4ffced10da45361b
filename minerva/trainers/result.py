"""What a call of `train` returns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from minerva.evaluation import Evaluation
from minerva.loggers.console import duration
from minerva.utils.notebook import in_notebook, show_picture


@dataclass(frozen=True, repr=False, kw_only=True)
class TrainingResult:
    """The result of a call of `train`: how far the run came, and where its files are."""

    algorithm: str
    """The algorithm."""
    env_id: str
    """The environment."""
    seed: int
    """The run's seed."""
    out_dir: Path
    """The run's folder; it is not created if there was nothing to train."""
    env_steps: int
    """Environment steps since the run's start, over all calls and resumes."""
    updates: int
    """Updates since the run's start."""
    first_evaluation: Evaluation | None
    """The evaluation before the first step; None in a run that was resumed."""
    last_evaluation: Evaluation | None
    """The newest evaluation of this call."""
    stopped_by: str | None
    """What stopped the run early: "callback", or None for a run that took all its steps."""
    seconds: float
    """Wall time of training since the run's start, evaluation included."""
    evaluation_seconds: float
    """The part of it that evaluations took."""

    def plot(self, out: str | Path | None = None, metric: str = "eval/return_mean") -> Path:
        """Plot the run's learning curve; in a notebook, show it too.

        Args:
            out: The file to write (PNG, SVG or PDF); by default ``learning_curve.png`` in the run's folder.
            metric: Name of the metric to plot, as in ``metrics.csv``.

        Returns:
            The file.

        Raises:
            ValueError: The run has no such metric, the file cannot be written, or matplotlib is not installed.
        """
        from minerva.report.curves import plot_curves
        from minerva.report.runs import read_run

        file = self.out_dir / "learning_curve.png" if out is None else Path(out)
        plotted = plot_curves([read_run(self.out_dir)], file, metric)
        if in_notebook():
            show_picture(plotted)
        return plotted

    def summary(self) -> str:
        """Return the result as a few lines for the terminal: returns, speed, and where the files are."""
        evaluations = {"Before": self.first_evaluation, "After": self.last_evaluation}
        lines = {name: _returns(found) for name, found in evaluations.items() if found is not None}
        if self.seconds > 0 and self.env_steps > 0:
            share = self.evaluation_seconds / self.seconds
            pace = f"{self.env_steps / self.seconds:,.0f} steps/s over the whole run of {duration(self.seconds)}"
            lines["Speed"] = f"{pace}, {share:.0%} of it evaluation"
        lines["Run"] = str(self.out_dir)
        lines["Checkpoint"] = str(self.out_dir / f"{self.algorithm}_last.pt")
        return "\n".join(f"{name:<10} {value}" for name, value in lines.items())

    def __repr__(self) -> str:
        facts = [f"{self.env_steps:,} steps", f"{self.updates:,} updates", duration(self.seconds)]
        evaluations = [found for found in (self.first_evaluation, self.last_evaluation) if found is not None]
        if evaluations:
            facts.append("return " + " → ".join(f"{found.returns.mean():,.1f}" for found in evaluations))
        if self.stopped_by is not None:
            facts.append(f"stopped by a {self.stopped_by}")
        run = f"{self.algorithm} on {self.env_id}, seed {self.seed}"
        return f"TrainingResult({run}: {', '.join(facts)}; {self.out_dir})"


def _returns(evaluation: Evaluation) -> str:
    metrics = evaluation.metrics()
    episodes = f"{len(evaluation.returns)} episode{'s' * (len(evaluation.returns) != 1)}"
    return f"return {metrics['eval/return_mean']:,.1f} ± {metrics['eval/return_std']:,.1f} ({episodes})"
