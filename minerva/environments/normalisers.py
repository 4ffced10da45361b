"""The reward normaliser (the observation normaliser is `minerva.utils.running_norm.RunningNorm`)."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from minerva.utils.running_norm import RunningNorm


class RewardNormalizer(nn.Module):
    """Divides rewards by the running standard deviation of the discounted return; they are not centred.

    Shared over the batch. A restarting step has no reward: it neither counts nor changes anything.

    Args:
        num_envs: N.
        gamma: Discount of the return whose deviation is measured.
        clip: Normalised rewards are clipped to ``[-clip, clip]``.
        eps: Added to the variance before the root.
    """

    discounted_return: Tensor

    def __init__(self, num_envs: int, gamma: float, clip: float = 10.0, eps: float = 1e-8) -> None:
        super().__init__()
        self.gamma = gamma
        self.clip = clip
        self.eps = eps
        self.statistics = RunningNorm(1)
        self.register_buffer("discounted_return", torch.zeros(num_envs, dtype=torch.float64))

    def normalise(
        self, rewards: NDArray[np.float64], ended: NDArray[np.bool_], restarting: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """Take in one step's raw rewards, ``[N]``, and return them normalised.

        The statistics are updated before they divide; a return starts from zero again after an episode has terminated
        or truncated.
        """
        returns: NDArray[np.float64] = self._buffers["discounted_return"].numpy()  # type: ignore[union-attr]
        # LaTeX: G_t = r_t + \gamma G_{t-1}
        np.add(rewards, self.gamma * returns, out=returns)
        # A restarting step has just added 0 to the 0 that its episode's end left behind; it is no sample.
        real = returns[~restarting] if restarting.any() else returns
        self.statistics.take_in(real[:, None])
        # LaTeX: \sigma_G = \sqrt{\mathrm{Var}[G] + \epsilon}
        deviation = math.sqrt(self.statistics.variance + self.eps)
        if ended.any():
            returns[ended] = 0.0
        # LaTeX[Huang2022]: \hat{r}_t = \mathrm{clip}\left( \frac{r_t}{\sigma_G},\; -c,\; c \right)
        normalised: NDArray[np.float64] = np.minimum(np.maximum(rewards / deviation, -self.clip), self.clip)
        return normalised
