"""Log the metrics of a run: always to a CSV file, on request to the console, TensorBoard and W&B."""

from minerva.loggers.base import Logger, LoggerList
from minerva.loggers.console import ConsoleLogger
from minerva.loggers.csv_file import CsvLogger
from minerva.loggers.tensorboard import TensorBoardLogger, open_tensorboard
from minerva.loggers.weights_and_biases import WandbLogger, open_wandb

__all__ = [
    "ConsoleLogger",
    "CsvLogger",
    "Logger",
    "LoggerList",
    "TensorBoardLogger",
    "WandbLogger",
    "open_tensorboard",
    "open_wandb",
]
