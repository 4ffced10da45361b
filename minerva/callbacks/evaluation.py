"""A callback that evaluates the policy at its own steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from minerva.callbacks.base import Callback
from minerva.callbacks.checks import function, number, positive_int
from minerva.callbacks.every_n_steps import reached_multiple
from minerva.loggers.base import check_name
from minerva.loggers.csv_file import read_values

if TYPE_CHECKING:
    from minerva.evaluation import Evaluation


class EvaluationCallback(Callback):
    """Evaluate the policy every `every` steps, save the best one, and stop the run at a target return.

    It evaluates as the run itself does: `eval_episodes` deterministic episodes in separate environments, without any
    effect on training. It uses its own schedule, which may fall in the middle of a rollout. It logs
    ``<name>/return_mean`` and so on, and saves the best policy so far as ``<algo>_best_<name>.pt`` in the run's folder.
    A resumed run reads its best return from the log.

    Args:
        every: Environment steps between evaluations.
        stop_at: Mean return at which the run stops; None never stops it.
        on_best: Called with the trainer and the `Evaluation` after each new best was saved; False stops the run.
        name: Prefix of the logged metrics.

    Attributes:
        best_return: Highest mean return so far.
        last_evaluation: The newest evaluation.

    Raises:
        ValueError: An argument is invalid.
    """

    def __init__(
        self,
        every: int,
        stop_at: float | None = None,
        on_best: Callable[[Any, Evaluation], bool | None] | None = None,
        name: str = "evaluation",
    ) -> None:
        self.every = positive_int("every", every)
        self.stop_at = None if stop_at is None else number("stop_at", stop_at)
        self.on_best = None if on_best is None else function("on_best", on_best)
        check_name(f"{name}/return_mean")
        if "/" in name:  # it becomes part of a file name
            raise ValueError(f"name: must be one word without '/', got {name!r}.")
        self.name = name
        self.best_return = -float("inf")
        self.last_evaluation: Evaluation | None = None

    def on_training_start(self, trainer: Any) -> None:
        """Read the best return so far from the log.

        Raises:
            ValueError: The run has no evaluation episodes.
        """
        if trainer.config.eval_episodes < 1:
            raise ValueError(
                "eval_episodes: must be at least 1 for an EvaluationCallback, got 0; to run no others, set a "
                "large eval_interval."
            )
        earlier = read_values(trainer.out_dir / "metrics.csv", f"{self.name}/return_mean")
        self.best_return = max((value for value in earlier if value == value), default=-float("inf"))

    def on_step(self, trainer: Any) -> bool:
        """Evaluate if an evaluation is due; return False to stop the run."""
        if not reached_multiple(trainer, self.every):
            return True
        self.last_evaluation = evaluation = trainer.evaluate()
        metrics = {name.removeprefix("eval/"): value for name, value in evaluation.metrics().items()}
        for name, value in metrics.items():
            trainer.log(f"{self.name}/{name}", value)
        mean = metrics["return_mean"]
        keep_training = self.stop_at is None or not mean >= self.stop_at
        if mean > self.best_return:
            self.best_return = mean
            trainer.save(trainer.out_dir / f"{trainer.algorithm}_best_{self.name}.pt", replay=False)
            if self.on_best is not None and self.on_best(trainer, evaluation) is False:
                keep_training = False
        return keep_training
