"""Callbacks: run user code at fixed points of training; some are ready to use."""

from minerva.callbacks.base import Callback, CallbackLike, CallbackList
from minerva.callbacks.checkpoints import CheckpointCallback
from minerva.callbacks.evaluation import EvaluationCallback
from minerva.callbacks.every_n_steps import EveryNSteps
from minerva.callbacks.progress_bar import ProgressBar
from minerva.callbacks.stop_on_return import StopOnReturn

__all__ = [
    "Callback",
    "CallbackLike",
    "CallbackList",
    "CheckpointCallback",
    "EvaluationCallback",
    "EveryNSteps",
    "ProgressBar",
    "StopOnReturn",
]
