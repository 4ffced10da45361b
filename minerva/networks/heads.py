"""Action heads: what a policy network's numbers mean, one class for each kind of action.

A head has no weights and no state. It turns the distribution's parameters, which a network gives for each observation,
into actions, log-probabilities, entropies and divergences. Actions are float32 rows, ``[..., A]``, for each kind of
action alike, as rollouts keep them and environments take them. Noise is drawn elsewhere and passed in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np
import torch
from gymnasium import Space, spaces
from numpy.typing import NDArray
from torch import Tensor

from minerva.objectives import bernoulli, categorical
from minerva.objectives.gaussian import gaussian_entropy, gaussian_log_prob
from minerva.objectives.kl import kl_of_means, kl_of_stds

Parameters = tuple[Tensor, ...]
"""Of a distribution; the last axis is the head's own, those before it are the batch's."""
Array = NDArray[np.float32]
Noise = Literal["normal", "uniform"]

BELOW_ONE = np.nextafter(np.float32(1), np.float32(0))


class ActionHead(Protocol):
    """A family of distributions over actions.

    Attributes:
        action_dim: A, entries of an action.
        size: P, how many numbers the policy network gives for each observation.
        mask_dim: K, entries of an action mask, or 0 where a mask makes no sense.
        noise: What is to be drawn for a sample: standard normal numbers, or uniform ones from [0, 1).
    """

    action_dim: int
    size: int
    mask_dim: int
    noise: Noise

    def sample(self, parameters: Parameters, noise: Tensor) -> Tensor:
        """Turn noise ``[..., A]`` into actions ``[..., A]``."""
        ...

    def mode(self, parameters: Parameters) -> Tensor:
        """Give the likeliest actions, ``[..., A]``."""
        ...

    def log_prob(self, parameters: Parameters, actions: Tensor) -> Tensor:
        """Score actions ``[..., A]``: ``[...]``."""
        ...

    def entropy(self, parameters: Parameters) -> Tensor:
        """Give the entropies, ``[...]``."""
        ...

    def kl(self, parameters: Parameters, other: Parameters) -> Tensor:
        """Give the divergences KL(parameters ‖ other), ``[...]``."""
        ...

    def masked(self, parameters: Parameters, mask: Tensor) -> Parameters:
        """Give what a mask ``[..., K]`` forbids (0 there, else 1) a probability of exactly 0."""
        ...

    def sample_numpy(self, parameters: tuple[Array, ...], noise: Array) -> Array:
        """Do what `sample` does, on NumPy: for a few rows, torch's dispatch costs more than the work itself."""
        ...


def head_for(space: Space[Any]) -> ActionHead:
    """Make the head for an action space.

    Raises:
        ValueError: There is none.
    """
    if isinstance(space, spaces.Box):
        return GaussianHead(math.prod(space.shape))
    if isinstance(space, spaces.Discrete):
        return CategoricalHead(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategoricalHead([int(n) for n in space.nvec.flat])
    if isinstance(space, spaces.MultiBinary):
        return BernoulliHead(math.prod(space.shape))
    raise ValueError(
        f"action space: must be a Box, Discrete, MultiDiscrete or MultiBinary, got {space}. "
        "Wrap the environment so that it takes one of these."
    )


class GaussianHead:
    """A diagonal Gaussian, parameters (mean ``[..., A]``, log_std, broadcast to it). Only the mean is the network's.

    Args:
        action_dim: A.
    """

    mask_dim = 0
    noise: Noise = "normal"

    def __init__(self, action_dim: int) -> None:
        self.action_dim = self.size = action_dim

    def sample(self, parameters: Parameters, noise: Tensor) -> Tensor:
        """Turn standard normal noise ``[..., A]`` into actions ``[..., A]``."""
        mean, log_std = parameters
        # LaTeX: a = \mu + \sigma \xi, \quad \xi \sim \mathcal{N}(0, I)
        return mean + log_std.exp() * noise

    def mode(self, parameters: Parameters) -> Tensor:
        """Give the mean, ``[..., A]``."""
        return parameters[0]

    def log_prob(self, parameters: Parameters, actions: Tensor) -> Tensor:
        """Score actions ``[..., A]``: ``[...]``."""
        mean, log_std = parameters
        return gaussian_log_prob(mean, log_std, actions)

    def entropy(self, parameters: Parameters) -> Tensor:
        """Give the entropies, ``[...]``."""
        mean, log_std = parameters
        return gaussian_entropy(log_std).expand(mean.shape[:-1])

    def kl(self, parameters: Parameters, other: Parameters) -> Tensor:
        """Give the divergences KL(parameters ‖ other), ``[...]``."""
        (old_mean, old_log_std), (mean, log_std) = parameters, other
        # The whole is not the sum of MPO's two halves: here the means' distance is measured with the other deviation.
        # LaTeX: D = \sum_j \left( \frac{(\mu_j - \mu'_j)^2}{2 \sigma_j^2} + D_{\sigma,j} \right)
        return (kl_of_means(mean, old_mean, log_std) + kl_of_stds(log_std, old_log_std)).sum(-1)

    def masked(self, parameters: Parameters, mask: Tensor) -> Parameters:
        """Refuse: a density has nothing that could be masked."""
        raise ValueError(_no_mask("continuous", mask))

    def sample_numpy(self, parameters: tuple[Array, ...], noise: Array) -> Array:
        """Do what `sample` does, on NumPy."""
        mean, log_std = parameters
        std: Array = np.exp(log_std)
        # LaTeX: a = \mu + \sigma \xi, \quad \xi \sim \mathcal{N}(0, I)
        return mean + std * noise


class CategoricalHead:
    """One choice of n, parameters (logits ``[..., n]``,). An action is its index, ``[..., 1]``.

    Args:
        n: How many there are to choose from.
    """

    action_dim = 1
    noise: Noise = "uniform"

    def __init__(self, n: int) -> None:
        self.size = self.mask_dim = n

    def sample(self, parameters: Parameters, noise: Tensor) -> Tensor:
        """Turn uniform noise ``[..., 1]`` into actions ``[..., 1]``."""
        return categorical.categorical_sample(parameters[0], noise[..., 0]).unsqueeze(-1).to(noise.dtype)

    def mode(self, parameters: Parameters) -> Tensor:
        """Give the likeliest actions, ``[..., 1]``."""
        return categorical.categorical_mode(parameters[0]).unsqueeze(-1).to(parameters[0].dtype)

    def log_prob(self, parameters: Parameters, actions: Tensor) -> Tensor:
        """Score actions ``[..., 1]``: ``[...]``."""
        return categorical.categorical_log_prob(parameters[0], actions[..., 0])

    def entropy(self, parameters: Parameters) -> Tensor:
        """Give the entropies, ``[...]``."""
        return categorical.categorical_entropy(parameters[0])

    def kl(self, parameters: Parameters, other: Parameters) -> Tensor:
        """Give the divergences KL(parameters ‖ other), ``[...]``."""
        return categorical.categorical_kl(parameters[0], other[0])

    def masked(self, parameters: Parameters, mask: Tensor) -> Parameters:
        """Give what a mask ``[..., n]`` forbids (0 there, else 1) a probability of exactly 0."""
        return (categorical.masked_logits(parameters[0], mask),)

    def sample_numpy(self, parameters: tuple[Array, ...], noise: Array) -> Array:
        """Do what `sample` does, on NumPy."""
        return _categorical_sample(parameters[0], noise)


class MultiCategoricalHead:
    """Several choices, independent of each other; parameters (logits of all of them side by side, ``[..., Σ n]``,).

    Args:
        nvec: How many there are to choose from, for each of the A choices.
    """

    noise: Noise = "uniform"

    def __init__(self, nvec: Sequence[int]) -> None:
        self.action_dim = len(nvec)
        self.size = self.mask_dim = sum(nvec)
        self._nvec = list(nvec)
        self._ends = np.cumsum(nvec)[:-1]

    def sample(self, parameters: Parameters, noise: Tensor) -> Tensor:
        """Turn uniform noise ``[..., A]`` into actions ``[..., A]``."""
        pairs = zip(self._groups(parameters), noise.unbind(-1), strict=True)
        return torch.stack([categorical.categorical_sample(*pair) for pair in pairs], dim=-1).to(noise.dtype)

    def mode(self, parameters: Parameters) -> Tensor:
        """Give the likeliest actions, ``[..., A]``."""
        modes = [categorical.categorical_mode(logits) for logits in self._groups(parameters)]
        return torch.stack(modes, dim=-1).to(parameters[0].dtype)

    def log_prob(self, parameters: Parameters, actions: Tensor) -> Tensor:
        """Score actions ``[..., A]``: ``[...]``."""
        pairs = zip(self._groups(parameters), actions.unbind(-1), strict=True)
        # LaTeX: \log p(a) = \sum_g \log p_g(a_g)
        return torch.stack([categorical.categorical_log_prob(*pair) for pair in pairs]).sum(0)

    def entropy(self, parameters: Parameters) -> Tensor:
        """Give the entropies, ``[...]``."""
        # LaTeX: H = \sum_g H(p_g)
        return torch.stack([categorical.categorical_entropy(logits) for logits in self._groups(parameters)]).sum(0)

    def kl(self, parameters: Parameters, other: Parameters) -> Tensor:
        """Give the divergences KL(parameters ‖ other), ``[...]``."""
        pairs = zip(self._groups(parameters), self._groups(other), strict=True)
        # LaTeX: D = \sum_g D(p_g \,\|\, q_g)
        return torch.stack([categorical.categorical_kl(*pair) for pair in pairs]).sum(0)

    def masked(self, parameters: Parameters, mask: Tensor) -> Parameters:
        """Give what a mask ``[..., Σ n]`` forbids (0 there, else 1) a probability of exactly 0."""
        return (categorical.masked_logits(parameters[0], mask),)

    def sample_numpy(self, parameters: tuple[Array, ...], noise: Array) -> Array:
        """Do what `sample` does, on NumPy."""
        groups = np.split(parameters[0], self._ends, axis=-1)
        samples = [_categorical_sample(logits, noise[..., i : i + 1]) for i, logits in enumerate(groups)]
        return np.concatenate(samples, axis=-1)

    def _groups(self, parameters: Parameters) -> tuple[Tensor, ...]:
        return torch.split(parameters[0], self._nvec, dim=-1)


class BernoulliHead:
    """n switches, independent of each other; parameters (logits ``[..., n]``,). An action is 0 or 1 for each.

    Args:
        n: How many.
    """

    mask_dim = 0
    noise: Noise = "uniform"

    def __init__(self, n: int) -> None:
        self.action_dim = self.size = n

    def sample(self, parameters: Parameters, noise: Tensor) -> Tensor:
        """Turn uniform noise ``[..., n]`` into actions ``[..., n]``."""
        return bernoulli.bernoulli_sample(parameters[0], noise)

    def mode(self, parameters: Parameters) -> Tensor:
        """Give the likeliest actions, ``[..., n]``."""
        return bernoulli.bernoulli_mode(parameters[0])

    def log_prob(self, parameters: Parameters, actions: Tensor) -> Tensor:
        """Score actions ``[..., n]``: ``[...]``."""
        return bernoulli.bernoulli_log_prob(parameters[0], actions)

    def entropy(self, parameters: Parameters) -> Tensor:
        """Give the entropies, ``[...]``."""
        return bernoulli.bernoulli_entropy(parameters[0])

    def kl(self, parameters: Parameters, other: Parameters) -> Tensor:
        """Give the divergences KL(parameters ‖ other), ``[...]``."""
        return bernoulli.bernoulli_kl(parameters[0], other[0])

    def masked(self, parameters: Parameters, mask: Tensor) -> Parameters:
        """Refuse: no environment that is served here has such a mask."""
        raise ValueError(_no_mask("multi-binary", mask))

    def sample_numpy(self, parameters: tuple[Array, ...], noise: Array) -> Array:
        """Do what `sample` does, on NumPy."""
        # LaTeX: \sigma(l_j) = e^{-\log(1 + e^{-l_j})}
        p = np.exp(-np.logaddexp(0, -parameters[0]))
        return (noise < p).astype(np.float32)


def _no_mask(kind: str, mask: Tensor) -> str:
    return (
        f"mask: {kind} actions take none, got one of shape {tuple(mask.shape)}; "
        "masks are for Discrete and MultiDiscrete action spaces."
    )


def _categorical_sample(logits: Array, uniform: Array) -> Array:
    """Sample one choice: logits ``[..., n]`` and uniform noise ``[..., 1]`` to ``[..., 1]``."""
    cumulative = np.cumsum(np.exp(logits - logits.max(-1, keepdims=True)), axis=-1)
    # This sum runs from left to right: what has no probability repeats the entry before it, and all from the last
    # allowed choice on are 1 after this division. So a count of those up to u < 1 ends at an allowed choice.
    # LaTeX: F_i = \frac{\sum_{k \le i} e^{l_k}}{\sum_{k} e^{l_k}}
    cumulative /= cumulative[..., -1:]
    # LaTeX: a = \left| \{ i : F_i \le u \} \right|
    count: Array = (cumulative <= np.minimum(uniform, BELOW_ONE)).sum(-1, keepdims=True, dtype=np.float32)
    return count
