"""Read demonstrations in minibatches."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minerva.compat.stable_baselines import logger

Array = NDArray[Any]
KEYS = ("actions", "obs", "rewards", "episode_returns", "episode_starts")


class ExpertDataset:
    """Demonstrations of an expert, split into a part for training and one for validation.

    The data are arrays along time, whole episodes one after the other: ``obs`` (or paths of pictures), ``actions``,
    ``rewards``, ``episode_starts``; and ``episode_returns``, one per episode. `generate_expert_traj` records them.

    Args:
        expert_path: The file, ``.npz``.
        traj_data: The data, in place of a file.
        train_fraction: Fraction of the steps for training.
        batch_size: Rows per minibatch.
        traj_limitation: Number of episodes; -1 for all.
        randomize: Whether minibatches are drawn in random order.
        verbose: 1 to print what the data are.
        sequential_preprocessing: Ignored: minibatches are made in this process.
    """

    def __init__(
        self,
        expert_path: str | os.PathLike[str] | None = None,
        traj_data: Mapping[str, Array] | None = None,
        train_fraction: float = 0.7,
        batch_size: int = 64,
        traj_limitation: int = -1,
        randomize: bool = True,
        verbose: int = 1,
        sequential_preprocessing: bool = False,
    ) -> None:
        if (expert_path is None) == (traj_data is None):
            raise ValueError("expert_path, traj_data: exactly one of them must be given.")
        data = _read(expert_path) if traj_data is None else dict(traj_data)
        for key in KEYS:
            if key not in data:
                raise ValueError(f"traj_data: must have the keys {', '.join(KEYS)}; {key!r} is missing.")
        starts = np.asarray(data["episode_starts"], dtype=bool)
        if len(data["obs"]) != len(data["actions"]):
            raise ValueError(
                "traj_data: must have as many observations as actions, got "
                f"{len(data['obs'])} and {len(data['actions'])}."
            )
        begins = np.flatnonzero(starts)
        self.num_traj = len(begins) if traj_limitation <= 0 else min(traj_limitation, len(begins))
        end = int(begins[self.num_traj]) if self.num_traj < len(begins) else len(data["obs"])
        self.observations = _rows(data["obs"][:end])
        self.actions = _rows(data["actions"][:end])
        self.returns = np.asarray(data["episode_returns"])[: self.num_traj]
        self.avg_ret = float(np.mean(self.returns))
        self.std_ret = float(np.std(self.returns))
        self.num_transition = end
        self.randomize = randomize
        self.verbose = verbose
        self.sequential_preprocessing = sequential_preprocessing
        # set_global_seeds makes it repeatable
        self._generator = np.random.default_rng(np.random.randint(2**31 - 1))  # noqa: NPY002
        indices = self._generator.permutation(end)
        share = int(train_fraction * end)
        for part, size in (("training", share), ("validation", end - share)):
            if size == 0:
                raise ValueError(
                    f"train_fraction: must leave steps for training and for validation, got {train_fraction} of {end} "
                    f"steps: none for {part}."
                )
        self.train_loader = self._loader(indices[:share], batch_size)
        self.val_loader = self._loader(indices[share:], batch_size)
        self.dataloader: DataLoader | None = None
        if verbose >= 1:
            for key, values in data.items():
                print(key, values.shape)
            self.log_info()

    def _loader(self, indices: Array, batch_size: int) -> DataLoader:
        return DataLoader(
            indices, self.observations, self.actions, batch_size, shuffle=self.randomize, generator=self._generator
        )

    def init_dataloader(self, batch_size: int) -> None:
        """Make the loader of all steps, which `get_next_batch` uses without a split."""
        self.dataloader = self._loader(self._generator.permutation(self.num_transition), batch_size)

    def log_info(self) -> None:
        """Print how many episodes there are and what they returned."""
        logger.log(f"Total trajectories: {self.num_traj}")
        logger.log(f"Total transitions: {self.num_transition}")
        logger.log(f"Average returns: {self.avg_ret}")
        logger.log(f"Std for returns: {self.std_ret}")

    def get_next_batch(self, split: str | None = None) -> tuple[Array, Array]:
        """Return the next minibatch, observations and actions; after the last one, the first again.

        Args:
            split: "train", "val", or None for all steps (after `init_dataloader`).
        """
        loaders = {None: self.dataloader, "train": self.train_loader, "val": self.val_loader}
        if split not in loaders:
            raise ValueError(f"split: must be 'train', 'val' or None, got {split!r}.")
        loader = loaders[split]
        if loader is None:
            raise ValueError("split: None needs init_dataloader(batch_size) first.")
        try:
            return next(loader)
        except StopIteration:
            return next(iter(loader))

    def plot(self) -> None:
        """Show a histogram of the episodes' returns."""
        from matplotlib import pyplot

        pyplot.hist(self.returns)
        pyplot.show()


class DataLoader:
    """Iterate over minibatches of observations and actions; pictures are read from their files.

    Args:
        indices: Rows to take.
        observations: All observations ``[T, ...]``, or paths of pictures.
        actions: All actions ``[T, ...]``.
        batch_size: Rows per minibatch.
        n_workers: Ignored, as are all arguments of processes: minibatches are made in this process.
        infinite_loop: Ignored.
        max_queue_len: Ignored.
        shuffle: Whether the order is random.
        start_process: Ignored.
        backend: Ignored.
        sequential: Ignored.
        partial_minibatch: Whether the last minibatch may be smaller; otherwise it is left out.
        generator: Source of the order.
    """

    def __init__(
        self,
        indices: Array,
        observations: Array,
        actions: Array,
        batch_size: int,
        n_workers: int = 1,
        infinite_loop: bool = True,
        max_queue_len: int = 1,
        shuffle: bool = False,
        start_process: bool = True,
        backend: str = "threading",
        sequential: bool = False,
        partial_minibatch: bool = True,
        generator: np.random.Generator | None = None,
    ) -> None:
        self.indices = np.array(indices)
        self.observations = observations
        self.actions = actions
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.n_minibatches = len(indices) // batch_size
        if partial_minibatch and len(indices) % batch_size:
            self.n_minibatches += 1
        self._next = 0
        self._generator = np.random.default_rng() if generator is None else generator

    def start_process(self) -> None:
        """Do nothing: there is no other process."""

    def __len__(self) -> int:
        return self.n_minibatches

    def __iter__(self) -> Iterator[tuple[Array, Array]]:
        self._next = 0
        return self

    def sequential_next(self) -> tuple[Array, Array]:
        """Return the next minibatch."""
        return next(self)

    def __next__(self) -> tuple[Array, Array]:
        if self._next >= self.n_minibatches:
            raise StopIteration
        if self._next == 0 and self.shuffle:
            self._generator.shuffle(self.indices)
        rows = self.indices[self._next * self.batch_size : (self._next + 1) * self.batch_size]
        self._next += 1
        observations = self.observations[rows]
        if observations.dtype.kind == "U":
            observations = np.stack([read_picture(path) for path in observations])
        return observations, self.actions[rows]


def read_picture(path: str) -> Array:
    """Read a picture, ``[H, W, C]``."""
    import cv2

    picture = cv2.imread(path, cv2.IMREAD_UNCHANGED)
    if picture is None:
        raise ValueError(f"traj_data: the picture {path} cannot be read.")
    if picture.ndim == 2:
        return np.asarray(picture[..., None])
    return np.asarray(cv2.cvtColor(picture, cv2.COLOR_BGR2RGB) if picture.shape[-1] == 3 else picture)


def _read(path: Any) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except ValueError as error:
        raise ValueError(f"expert_path: {path} must hold arrays of numbers or text: {error}") from error


def _rows(values: Any) -> Array:
    array = np.asarray(values)
    return array.reshape(len(array), -1) if array.ndim > 2 else array
