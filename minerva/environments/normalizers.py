"""The reward normalizer (the observation normalizer is `minerva.utils.running_norm.RunningNorm`)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from minerva.objectives.returns import backward_recursion
from minerva.utils.running_norm import (
    RunningNorm,
    may_hold_outliers,
    merge_moments,
    outlier_limit,
    warn_about_outliers,
)


class RewardNormalizer(nn.Module):
    """Divide rewards by the running standard deviation of the discounted return, without centering.

    All environments share the statistics. Restarting steps have no reward and do not change them. A single absurd
    reward counts as the largest that can be learned from, `clip` deviations, as in `RunningNorm`.

    Args:
        num_envs: N.
        gamma: Discount of the return.
        clip: Normalized rewards are clipped to ``[-clip, clip]``.
        eps: Added to the variance before the square root.
    """

    discounted_return: Tensor

    def __init__(self, num_envs: int, gamma: float, clip: float = 10.0, eps: float = 1e-8) -> None:
        super().__init__()
        self.gamma = gamma
        self.clip = clip
        self.eps = eps
        self.statistics = RunningNorm(1)
        self.register_buffer("discounted_return", torch.zeros(num_envs, dtype=torch.float64))
        self._outliers = 0  # for the warnings

    def normalize(
        self, rewards: NDArray[np.float64], ended: NDArray[np.bool_], restarting: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """Update the statistics with the raw rewards of one step, ``[N]``, and return them normalized."""
        result: NDArray[np.float64] = self.normalize_all(rewards[None], ended[None], restarting[None])[0]
        return result

    def normalize_all(
        self, rewards: NDArray[np.float64], ended: NDArray[np.bool_], restarting: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """Update the statistics with raw rewards step by step, ``[T, N]``, and return them normalized.

        Each step is divided by statistics that include it; the return restarts from 0 after an episode has ended.
        """
        if may_hold_outliers(rewards):
            rewards = self._without_outliers(rewards)
        carried = self.discounted_return.numpy()
        not_ended = np.ones(rewards.shape)
        not_ended[1:] = ~ended[:-1]
        # In reversed time, this is the backward recursion of returns.
        terms, decays = (torch.from_numpy(x[::-1].copy()) for x in (rewards, self.gamma * not_ended))
        # LaTeX: G_t = r_t + \gamma (1 - e_{t-1}) G_{t-1}
        returns = backward_recursion(terms, decays, self.discounted_return).numpy()[::-1]
        carried[:] = np.where(ended[-1], 0.0, returns[-1])
        deviations = self._deviations(returns, ~restarting)  # [T]
        # LaTeX[Huang2022]: \hat{r}_t = \mathrm{clip}\left( \frac{r_t}{\sigma_G},\; -c,\; c \right)
        normalized: NDArray[np.float64] = (rewards / deviations[:, None]).clip(-self.clip, self.clip)
        return normalized

    def _without_outliers(self, rewards: NDArray[np.float64]) -> NDArray[np.float64]:
        count, deviation = self.statistics.count.item(), self.statistics.var.item() ** 0.5
        size = abs(self.statistics.mean.item()) + deviation
        if count < 1:  # the first rollout is measured by itself
            size = deviation = float(np.median(np.abs(rewards[rewards != 0])))
        limit = outlier_limit(max(count, 1), size)
        wrong = np.abs(rewards) > limit
        found = int(wrong.sum())
        if found == 0:
            return rewards
        self._outliers = warn_about_outliers("a reward is", float(rewards[wrong][0]), self._outliers, found)
        return np.where(wrong, np.sign(rewards) * self.clip * deviation, rewards)

    def _deviations(self, returns: NDArray[np.float64], real: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Update the statistics with the real returns ``[T, N]`` and return the deviation after each step, ``[T]``."""
        rows = real.sum(1)  # a restarting step is no sample
        means = (returns * real).sum(1) / np.maximum(rows, 1)
        squares = ((returns - means[:, None]) ** 2 * real).sum(1)
        statistics = self.statistics
        moments = statistics.count.item(), statistics.mean.item(), statistics.var.item()
        variances = []
        for batch in zip(rows.tolist(), means.tolist(), squares.tolist(), strict=True):
            if batch[0] > 0:
                moments = merge_moments(*moments, *batch)
            variances.append(moments[2])
        statistics.count.fill_(moments[0])
        statistics.mean.fill_(moments[1])
        statistics.var.fill_(moments[2])
        # LaTeX: \sigma_G = \sqrt{\mathrm{Var}[G] + \epsilon}
        deviations: NDArray[np.float64] = np.sqrt(np.array(variances) + self.eps)
        return deviations
