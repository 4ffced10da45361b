"""Action heads: the distributions over actions, one class per kind of action space.

A head has no weights. It turns the parameters of a distribution, which a network outputs for each observation, into
actions, log-probabilities, entropies and divergences. Actions are float32 rows ``[..., A]`` for every kind of action,
as rollout buffers store them and environments take them. `sample` draws nothing: its noise is passed in.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from minerva.networks.numpy_mlp import Array
from minerva.objectives import bernoulli, categorical
from minerva.objectives.gaussian import gaussian_cross_entropy, gaussian_entropy, gaussian_log_prob
from minerva.objectives.kl import kl_of_means, kl_of_stds

DistParams = tuple[Tensor, ...]
"""Parameters of a distribution. The last axis belongs to the head, those before it to the batch."""
NumpySampler = Callable[[tuple[Array, ...], Array], Array]
NoiseKind = Literal["normal", "uniform"]

BELOW_ONE = np.nextafter(np.float32(1), np.float32(0))
LOG_STD_RANGE = (-20.0, 2.0)
"""Bounds of a log-standard-deviation that depends on the state."""
ATANH_LIMIT = 1 - 1e-6
"""Squashed actions are taken to be no closer to ±1 than this: beyond it their inverse is mostly rounding error."""
MAX_SAMPLE = math.atanh(ATANH_LIMIT)
"""The largest sample that can be recovered from an action, about 7.25."""


class ActionHead(ABC):
    """Base class of action heads: a family of distributions over actions.

    Attributes:
        action_dim: A, entries of an action.
        size: P, how many numbers the policy network outputs per observation.
        mask_dim: K, entries of an action mask, or 0 where there is none.
        noise: What a sample needs: standard normal numbers, or uniform ones from [0, 1).
        param_names: What a public batch calls the distribution's parameters of the policy that acted.
        counts: Options of each entry of a discrete action; None for continuous ones.
    """

    action_dim: int
    size: int
    mask_dim: int = 0
    noise: NoiseKind = "uniform"
    param_names: tuple[str, ...] = ("old_logits",)
    counts: list[int] | None = None

    def distribution(self, output: Tensor, log_std: Tensor | None = None) -> DistParams:
        """Return the parameters of the distribution from what the policy network outputs."""
        return (output,)

    @abstractmethod
    def sample(self, params: DistParams, noise: Tensor) -> Tensor:
        """Turn noise ``[..., A]`` into actions ``[..., A]``."""

    @abstractmethod
    def mode(self, params: DistParams) -> Tensor:
        """Return the most likely actions, ``[..., A]``."""

    @abstractmethod
    def log_prob(self, params: DistParams, actions: Tensor) -> Tensor:
        """Return the log-probabilities of actions ``[..., A]``: ``[...]``."""

    @abstractmethod
    def entropy(self, params: DistParams) -> Tensor:
        """Return the entropies, ``[...]``."""

    @abstractmethod
    def kl(self, params: DistParams, other: DistParams) -> Tensor:
        """Return the divergences KL(params ‖ other), ``[...]``."""

    @abstractmethod
    def sample_numpy(self, params: tuple[Array, ...], noise: Array) -> Array:
        """Sample on NumPy (before any squashing)."""

    def numpy_sampler(self) -> NumpySampler:
        """Return the function that samples on NumPy: for a few rows, torch's dispatch costs more than the work."""
        return self.sample_numpy

    def masked(self, params: DistParams, mask: Tensor) -> DistParams:
        """Set the probability of what a mask ``[..., K]`` forbids (0 there, else 1) to exactly 0."""
        raise ValueError(
            f"mask: {type(self).__name__} takes none, got one of shape {tuple(mask.shape)}; "
            "masks are for Discrete and MultiDiscrete action spaces."
        )

    def check_actions(self, actions: Tensor) -> None:
        """Check that finite actions ``[..., A]`` are actions of this head.

        Raises:
            ValueError: A discrete action is not one of its choices.
        """
        if self.counts is None:
            return
        wrong = (actions < 0) | (actions >= actions.new_tensor(self.counts)) | (actions != actions.floor())
        wrong &= actions.isfinite()
        if wrong.any():
            raise ValueError(
                f"batch: actions must be whole numbers from 0 on, below {list(self.counts)} in each entry; got "
                f"{actions[wrong][0].item():g}."
            )

    def draw_noise(self, shape: Sequence[int], generator: torch.Generator | None, like: Tensor) -> Tensor:
        """Draw what actions of a batch shape are sampled with, ``[*shape, A]``, on the device of `like`."""
        draw = torch.randn if self.noise == "normal" else torch.rand
        return draw((*shape, self.action_dim), generator=generator, device=like.device, dtype=like.dtype)

    # What V-MPO needs; primes mark the policy that acted

    def unsquash(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the samples ``[..., A]`` that became actions, and the log-volume of that change, ``[...]``."""
        return actions, torch.zeros_like(actions[..., 0])

    def sample_log_prob(self, params: DistParams, samples: Tensor) -> Tensor:
        """Return the log-probabilities of samples that `unsquash` returned: ``[...]``."""
        return self.log_prob(params, samples)

    def exactness(self, old: DistParams) -> Tensor:
        """Return from 0 to 1 whether `unsquash` recovers all samples of the policy that acted: ``[...]``."""
        return torch.ones_like(old[0][..., 0])

    def cross_entropy(self, params: DistParams, old: DistParams) -> Tensor:
        """Return the mean of -log π(sample) over the policy that acted: ``[...]``."""
        # LaTeX: H(\pi'_t, \pi_t) = H(\pi'_t) + \mathrm{KL}(\pi'_t \,\|\, \pi_t)
        return self.entropy(old) + self.kl(old, params)

    def divergences(self, params: DistParams, old: DistParams) -> tuple[Tensor, ...]:
        """Return the divergences from the policy that acted that V-MPO bounds, ``[...]`` each."""
        # LaTeX[Song2020, eq. 5]: D_t = \mathrm{KL}(\pi'_t \,\|\, \pi_t)
        divergence = self.kl(old, params)
        return (divergence,)


def head_for(space: Space[Any]) -> ActionHead:
    """Build the action head for an action space; for a Box, a Gaussian that is not squashed.

    Raises:
        ValueError: There is no head for it.
    """
    if isinstance(space, spaces.Box):
        return GaussianHead(math.prod(space.shape))
    if isinstance(space, spaces.Discrete):
        return MultiCategoricalHead([int(space.n)])
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategoricalHead([int(n) for n in space.nvec.flat])
    if isinstance(space, spaces.MultiBinary):
        return BernoulliHead(math.prod(space.shape))
    raise ValueError(
        f"action space: must be a Box, Discrete, MultiDiscrete or MultiBinary, got {space}. "
        "Wrap the environment so that it takes one of these."
    )


class GaussianHead(ActionHead):
    """Gaussian action head: a diagonal Gaussian with parameters (mean ``[..., A]``, log_std, broadcast to it).

    Args:
        action_dim: A.
    """

    noise: NoiseKind = "normal"
    param_names = ("old_means", "old_log_stds")

    def __init__(self, action_dim: int) -> None:
        self.action_dim = self.size = action_dim

    def distribution(self, output: Tensor, log_std: Tensor | None = None) -> DistParams:
        assert log_std is not None
        return output, log_std

    def sample(self, params: DistParams, noise: Tensor) -> Tensor:
        mean, log_std = params
        # LaTeX: a = \mu + \sigma \xi, \quad \xi \sim \mathcal{N}(0, I)
        return mean + log_std.exp() * noise

    def mode(self, params: DistParams) -> Tensor:
        return params[0]

    def log_prob(self, params: DistParams, actions: Tensor) -> Tensor:
        mean, log_std = params
        return gaussian_log_prob(mean, log_std, actions)

    def entropy(self, params: DistParams) -> Tensor:
        mean, log_std = params
        return gaussian_entropy(log_std).expand(mean.shape[:-1])

    def kl(self, params: DistParams, other: DistParams) -> Tensor:
        (old_mean, old_log_std), (mean, log_std) = params, other
        # The whole is not the sum of MPO's two halves: here the means' distance is measured with the other deviation.
        # LaTeX: D = \sum_j \left( \frac{(\mu_j - \mu'_j)^2}{2 \sigma_j^2} + D_{\sigma,j} \right)
        return (kl_of_means(mean, old_mean, log_std) + kl_of_stds(log_std, old_log_std)).sum(-1)

    def cross_entropy(self, params: DistParams, old: DistParams) -> Tensor:
        return gaussian_cross_entropy(*params, *old)

    def divergences(self, params: DistParams, old: DistParams) -> tuple[Tensor, ...]:
        """Return the divergences that the changes of mean and standard deviation make, ``[...]`` each."""
        (mean, log_std), (old_mean, old_log_std) = params, old
        # LaTeX[Song2020, app. C]: D_{\mu,t} = \sum_j D_{\mu,t,j}
        of_mean = kl_of_means(mean, old_mean, old_log_std).sum(-1)
        # LaTeX[Song2020, app. C]: D_{\sigma,t} = \sum_j D_{\sigma,t,j}
        of_std = kl_of_stds(log_std, old_log_std).sum(-1)
        return of_mean, of_std

    def sample_numpy(self, params: tuple[Array, ...], noise: Array) -> Array:
        mean, log_std = params
        std: Array = np.exp(log_std)
        # LaTeX: a = \mu + \sigma \xi, \quad \xi \sim \mathcal{N}(0, I)
        return mean + std * noise


class SquashedGaussianHead(GaussianHead, nn.Module):
    """Squashed Gaussian action head: samples pass through tanh and are scaled to the action bounds.

    Samples u are those of the Gaussian; actions a, on the environment's scale, are what it receives. Means and standard
    deviations belong to u, `log_prob` is the density of a. Entropy and divergences are those of the Gaussian.

    Args:
        low: Lower bounds, ``[A]``.
        high: Upper bounds, ``[A]``.

    Raises:
        ValueError: A bound is infinite, or a lower bound is not below the upper one.
    """

    low: Tensor
    high: Tensor

    def __init__(self, low: Any, high: Any) -> None:
        nn.Module.__init__(self)
        # Buffers: a policy that is loaded brings its bounds along.
        for name, bound in (("low", low), ("high", high)):
            self.register_buffer(name, torch.as_tensor(bound, dtype=torch.get_default_dtype()).reshape(-1).clone())
            if not getattr(self, name).isfinite().all():
                raise ValueError(
                    f"action_{name}: must be finite, because actions are squashed into their bounds; got "
                    f"{getattr(self, name).tolist()}. Wrap the environment so that its action space has finite bounds, "
                    "or use ppo."
                )
        if not (self.low < self.high).all():
            raise ValueError(f"action_high: must be above action_low = {self.low.tolist()}, got {self.high.tolist()}.")
        GaussianHead.__init__(self, len(self.low))

    def distribution(self, output: Tensor, log_std: Tensor | None = None) -> DistParams:
        assert log_std is not None
        # One deviation for all rows is [1, A], and an observation may come without a batch.
        return output, log_std.squeeze(0).expand_as(output).clamp(*LOG_STD_RANGE)

    def sample(self, params: DistParams, noise: Tensor) -> Tensor:
        return self.squash(super().sample(params, noise))

    def mode(self, params: DistParams) -> Tensor:
        return self.squash(params[0])

    def log_prob(self, params: DistParams, actions: Tensor) -> Tensor:
        """Return the log-densities of actions ``[..., A]`` on the environment's scale: ``[...]``."""
        samples, log_volume = self.unsquash(actions)
        # LaTeX[Haarnoja2018, app. C]: \log \pi(a) = \log \mathcal{N}(u; \mu, \sigma) - \log \left| \frac{\partial a}{\partial u} \right|
        return self.sample_log_prob(params, samples) - log_volume

    def sample_log_prob(self, params: DistParams, samples: Tensor) -> Tensor:
        return GaussianHead.log_prob(self, params, samples)

    def squash(self, samples: Tensor) -> Tensor:
        """Turn samples into actions."""
        # LaTeX: a_j = c_j + h_j \tanh(u_j)
        actions = self._center + self._half * torch.tanh(samples)
        return actions.clamp(self.low, self.high)  # rounding may lead out of the box

    def unsquash(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the samples behind actions, finite even at the bounds, and the log-volume of the squashing."""
        # LaTeX: u_j = \mathrm{artanh}\left( \mathrm{clip}\left( \frac{a_j - c_j}{h_j},\; -1 + 10^{-6},\; 1 - 10^{-6} \right) \right)
        samples = torch.atanh(((actions - self._center) / self._half).clamp(-ATANH_LIMIT, ATANH_LIMIT))
        return samples, self.log_volume(samples)

    def exactness(self, old: DistParams) -> Tensor:
        mean, log_std = old
        # 1 where the policy is 3 deviations or more away from where tanh saturates, 0 within 2 of them.
        # LaTeX: f_t = \mathrm{clip}\left( \min_j \frac{u_{\max} - |\mu'_{t,j}|}{\sigma'_{t,j}} - 2,\; 0,\; 1 \right)
        return (((MAX_SAMPLE - mean.abs()) / log_std.exp()).amin(-1) - 2).clamp(0, 1)

    def log_volume(self, samples: Tensor) -> Tensor:
        """Return by how much squashing stretches space around samples ``[..., A]``, as a logarithm: ``[...]``."""
        # LaTeX: \log (1 - \tanh^2 u_j) = 2 \left( \log 2 - u_j - \log(1 + e^{-2 u_j}) \right)
        slope = 2 * (math.log(2) - samples - nn.functional.softplus(-2 * samples))
        # LaTeX[Haarnoja2018, app. C]: \log \left| \frac{\partial a}{\partial u} \right| = \sum_j \left( \log h_j + \log (1 - \tanh^2 u_j) \right)
        return (self._half.log() + slope).sum(-1)

    def numpy_sampler(self) -> NumpySampler:
        low, high, center, half = (part.numpy() for part in (self.low, self.high, self._center, self._half))

        def sample(params: tuple[Array, ...], noise: Array) -> Array:
            mean, log_std = params
            samples = self.sample_numpy((mean, np.clip(log_std, *LOG_STD_RANGE)), noise)
            # LaTeX: a_j = c_j + h_j \tanh(u_j)
            actions: Array = center + half * np.tanh(samples)
            np.minimum(np.maximum(actions, low, out=actions), high, out=actions)
            return actions

        return sample

    @property
    def _center(self) -> Tensor:
        # LaTeX: c_j = \tfrac12 (a_{\max,j} + a_{\min,j})
        return (self.high + self.low) / 2

    @property
    def _half(self) -> Tensor:
        # LaTeX: h_j = \tfrac12 (a_{\max,j} - a_{\min,j})
        return (self.high - self.low) / 2


class MultiCategoricalHead(ActionHead):
    """Categorical action head: one or several independent choices, with their logits side by side, ``[..., Σ n]``.

    An action is the index of each choice.

    Args:
        nvec: Number of options of each of the A choices.
    """

    counts: list[int]

    def __init__(self, nvec: Sequence[int]) -> None:
        self.action_dim = len(nvec)
        self.size = self.mask_dim = sum(nvec)
        self.counts = list(nvec)
        self._ends = np.cumsum(nvec)[:-1]

    def sample(self, params: DistParams, noise: Tensor) -> Tensor:
        pairs = zip(self._groups(params), noise.unbind(-1), strict=True)
        return torch.stack([categorical.categorical_sample(*pair) for pair in pairs], dim=-1).to(noise.dtype)

    def mode(self, params: DistParams) -> Tensor:
        modes = [categorical.categorical_mode(logits) for logits in self._groups(params)]
        return torch.stack(modes, dim=-1).to(params[0].dtype)

    def log_prob(self, params: DistParams, actions: Tensor) -> Tensor:
        pairs = zip(self._groups(params), actions.unbind(-1), strict=True)
        # LaTeX: \log p(a) = \sum_g \log p_g(a_g)
        return _add([categorical.categorical_log_prob(*pair) for pair in pairs])

    def entropy(self, params: DistParams) -> Tensor:
        # LaTeX: H = \sum_g H(p_g)
        return _add([categorical.categorical_entropy(logits) for logits in self._groups(params)])

    def kl(self, params: DistParams, other: DistParams) -> Tensor:
        pairs = zip(self._groups(params), self._groups(other), strict=True)
        # LaTeX: D = \sum_g D(p_g \,\|\, q_g)
        return _add([categorical.categorical_kl(*pair) for pair in pairs])

    def masked(self, params: DistParams, mask: Tensor) -> DistParams:
        return (categorical.masked_logits(params[0], mask),)

    def sample_numpy(self, params: tuple[Array, ...], noise: Array) -> Array:
        groups = np.split(params[0], self._ends, axis=-1)
        samples = [_categorical_sample(logits, noise[..., i : i + 1]) for i, logits in enumerate(groups)]
        return np.concatenate(samples, axis=-1)

    def _groups(self, params: DistParams) -> tuple[Tensor, ...]:
        return torch.split(params[0], self.counts, dim=-1) if len(self.counts) > 1 else params[:1]


def _add(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)


class BernoulliHead(ActionHead):
    """Bernoulli action head: n independent switches with logits ``[..., n]``; an action is 0 or 1 for each.

    Args:
        n: Number of switches.
    """

    def __init__(self, n: int) -> None:
        self.action_dim = self.size = n
        self.counts = [2] * n

    def sample(self, params: DistParams, noise: Tensor) -> Tensor:
        return bernoulli.bernoulli_sample(params[0], noise)

    def mode(self, params: DistParams) -> Tensor:
        return bernoulli.bernoulli_mode(params[0])

    def log_prob(self, params: DistParams, actions: Tensor) -> Tensor:
        return bernoulli.bernoulli_log_prob(params[0], actions)

    def entropy(self, params: DistParams) -> Tensor:
        return bernoulli.bernoulli_entropy(params[0])

    def kl(self, params: DistParams, other: DistParams) -> Tensor:
        return bernoulli.bernoulli_kl(params[0], other[0])

    def sample_numpy(self, params: tuple[Array, ...], noise: Array) -> Array:
        # LaTeX: \sigma(l_j) = e^{-\log(1 + e^{-l_j})}
        p = np.exp(-np.logaddexp(0, -params[0]))
        return (noise < p).astype(np.float32)


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
