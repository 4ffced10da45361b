"""Evaluations of one's own beside those of the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from minerva.callbacks.base import Callback
from minerva.callbacks.checks import function, number, whole_number
from minerva.callbacks.every_n_steps import reached_multiple
from minerva.loggers.base import check_name
from minerva.loggers.csv_file import read_values

if TYPE_CHECKING:
    from minerva.evaluation import Evaluation


class EvaluationCallback(Callback):
    """Evaluates the policy every so many steps, keeps the best one, and ends the run when it is good enough.

    It evaluates as the run itself does, `eval_episodes` deterministic episodes in environments of their own, and
    leaves the training untouched; but at its own steps, in the middle of a rollout too. Results are logged as
    ``<name>/return_mean`` and so on; the best policy so far is kept in the run's folder as ``<algo>_best_<name>.pt``.
    A resumed run finds its best return in its log again.

    Args:
        every: Environment steps between evaluations.
        stop_at: Mean return at which the run ends; None for never.
        on_best: Called with the trainer and the `Evaluation` at each new best, after it was saved; False ends the run.
        name: What the results are logged under.

    Attributes:
        best_return: Highest mean return so far.
        last_evaluation: The newest one.

    Raises:
        ValueError: An argument breaks a rule.
    """

    def __init__(
        self,
        every: int,
        stop_at: float | None = None,
        on_best: Callable[[Any, Evaluation], bool | None] | None = None,
        name: str = "evaluation",
    ) -> None:
        self.every = whole_number("every", every)
        self.stop_at = None if stop_at is None else number("stop_at", stop_at)
        self.on_best = None if on_best is None else function("on_best", on_best)
        check_name(f"{name}/return_mean")
        if "/" in name:  # it becomes part of a file's name
            raise ValueError(f"name: must be one word without '/', got {name!r}.")
        self.name = name
        self.best_return = -float("inf")
        self.last_evaluation: Evaluation | None = None

    def on_training_start(self, trainer: Any) -> None:
        """Find the best return so far.

        Raises:
            ValueError: The run has no evaluation episodes.
        """
        if trainer.config.eval_episodes < 1:
            raise ValueError(
                "eval_episodes: must be at least 1 for an EvaluationCallback, got 0; for no other evaluations than its "
                "own, give a large eval_interval."
            )
        earlier = read_values(trainer.out_dir / "metrics.csv", f"{self.name}/return_mean")
        self.best_return = max((value for value in earlier if value == value), default=-float("inf"))

    def on_step(self, trainer: Any) -> bool:
        """Evaluate, if it is time; False where that ends the run."""
        if not reached_multiple(trainer, self.every):
            return True
        self.last_evaluation = evaluation = trainer.evaluate()
        metrics = {name.removeprefix("eval/"): value for name, value in evaluation.metrics().items()}
        for name, value in metrics.items():
            trainer.log(f"{self.name}/{name}", value)
        mean = metrics["return_mean"]
        goes_on = self.stop_at is None or not mean >= self.stop_at
        if mean > self.best_return:
            self.best_return = mean
            trainer.save(trainer.out_dir / f"{trainer.algorithm}_best_{self.name}.pt", memory=False)
            if self.on_best is not None and self.on_best(trainer, evaluation) is False:
                goes_on = False
        return goes_on
