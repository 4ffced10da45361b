"""What V-MPO's update has to know of the actions: continuous ones, or discrete ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from minerva.networks.heads import ActionHead, Parameters
from minerva.objectives.gaussian import gaussian_cross_entropy, gaussian_entropy, gaussian_log_prob
from minerva.objectives.kl import kl_of_means, kl_of_stds
from minerva.objectives.weighted import weighted_mean
from minerva.trainers.vmpo.config import VMPOConfig
from minerva.trainers.vmpo.gaussian_mlp_policy import SquashedGaussianPolicy


class Bound(NamedTuple):
    """A bound on one of the divergences, and the names that belong to it."""

    epsilon: float
    multiplier: str  # its Lagrange multiplier's, among `Multipliers`
    kl: str  # metrics: the divergence over all samples, and with "_sel" over the kept ones,
    penalty: str  # what the policy pays for it,
    alpha: str  # the multiplier,
    ratio: str  # and the divergence over the kept samples, as a multiple of the bound


class ActionKind(Protocol):
    """The maths of one kind of actions, for rows ``[B, ·]``. Primes are the policy that acted.

    Attributes:
        old_names: What a batch calls the parameters of the policy that acted.
        bounds: One for each of the D divergences.
    """

    old_names: tuple[str, ...]
    bounds: tuple[Bound, ...]

    def check(self, actions: Tensor) -> None:
        """Look for actions that cannot be.

        Raises:
            ValueError: There is one.
        """
        ...

    def unsquash(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Give the samples ``[B, A]`` that became actions, and by how much that stretched space, as a logarithm."""
        ...

    def log_prob(self, parameters: Parameters, samples: Tensor) -> Tensor:
        """Score samples: ``[B]``."""
        ...

    def cross_entropy(self, parameters: Parameters, old: Parameters) -> Tensor:
        """Give what -log π(sample) is on average over the policy that acted: ``[B]``."""
        ...

    def divergences(self, parameters: Parameters, old: Parameters) -> tuple[Tensor, ...]:
        """Give the D divergences from the policy that acted, ``[B]`` each."""
        ...

    def entropy(self, parameters: Parameters) -> Tensor:
        """Give the entropies, ``[B]``."""
        ...

    def metrics(self, parameters: Parameters, counted: Tensor) -> dict[str, Tensor]:
        """Look at what is chosen in the rows that count."""
        ...


class ContinuousActions:
    """A squashed Gaussian: all but the density are of the Gaussian before the tanh. Mean and deviation have bounds.

    Args:
        policy: Knows how actions are squashed.
        config: V-MPO's hyperparameters.
    """

    old_names: tuple[str, ...] = ("old_means", "old_log_stds")

    def __init__(self, policy: SquashedGaussianPolicy, config: VMPOConfig) -> None:
        self._policy = policy
        self.bounds: tuple[Bound, ...] = (
            Bound(
                config.epsilon_mu, "mu", "kl/mean", "loss/policy_kl_mean_pen", "vmpo/alpha_mu", "health/kl_mean_ratio"
            ),
            Bound(
                config.epsilon_sigma, "sigma", "kl/std", "loss/policy_kl_std_pen", "vmpo/alpha_sigma",
                "health/kl_std_ratio",
            ),
        )  # fmt: skip

    def check(self, actions: Tensor) -> None:
        """Find nothing: what lies outside the box is taken for its edge."""

    def unsquash(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Undo the tanh."""
        raw = self._policy.unsquash(actions)
        return raw, self._policy.log_volume(raw)

    def log_prob(self, parameters: Parameters, samples: Tensor) -> Tensor:
        """Give log-densities before the tanh, ``[B]``."""
        mean, log_std = parameters
        return gaussian_log_prob(mean, log_std, samples)

    def cross_entropy(self, parameters: Parameters, old: Parameters) -> Tensor:
        """Give H(N', N), ``[B]``."""
        return gaussian_cross_entropy(*parameters, *old)

    def divergences(self, parameters: Parameters, old: Parameters) -> tuple[Tensor, ...]:
        """Give those that the changes of mean and deviation make, ``[B]`` each."""
        (mean, log_std), (old_mean, old_log_std) = parameters, old
        # LaTeX[Song2020, app. C]: D_{\mu,t} = \sum_j D_{\mu,t,j}
        of_mean = kl_of_means(mean, old_mean, old_log_std).sum(-1)
        # LaTeX[Song2020, app. C]: D_{\sigma,t} = \sum_j D_{\sigma,t,j}
        of_std = kl_of_stds(log_std, old_log_std).sum(-1)
        return of_mean, of_std

    def entropy(self, parameters: Parameters) -> Tensor:
        """Give the Gaussian's, ``[B]``."""
        return gaussian_entropy(parameters[1])

    def metrics(self, parameters: Parameters, counted: Tensor) -> dict[str, Tensor]:
        """Give the mean size of deterministic actions."""
        return {"train/mean_abs_action": weighted_mean(self._policy.squash(parameters[0]).abs().mean(-1), counted)}


class DiscreteActions:
    """One choice, several, or switches: one divergence and one bound, that of the mean.

    Args:
        head: What the logits mean.
        counts: How many there are to choose from, for each entry of an action.
        config: V-MPO's hyperparameters.
    """

    old_names: tuple[str, ...] = ("old_logits",)

    def __init__(self, head: ActionHead, counts: Sequence[int], config: VMPOConfig) -> None:
        self._head = head
        self._counts = list(counts)
        self.bounds: tuple[Bound, ...] = (
            Bound(config.epsilon_mu, "policy", "kl/policy", "loss/policy_kl_pen", "vmpo/alpha", "health/kl_ratio"),
        )

    def check(self, actions: Tensor) -> None:
        """Look for what is not a choice.

        Raises:
            ValueError: There is one.
        """
        wrong = (actions < 0) | (actions >= actions.new_tensor(self._counts)) | (actions != actions.floor())
        if wrong.any():
            raise ValueError(
                f"batch: actions must be whole numbers from 0 on, below {self._counts} in each entry; got "
                f"{actions[wrong][0].item():g}."
            )

    def unsquash(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Give the actions as they are: no space is stretched."""
        return actions, torch.zeros_like(actions[:, 0])

    def log_prob(self, parameters: Parameters, samples: Tensor) -> Tensor:
        """Give log-probabilities, ``[B]``."""
        return self._head.log_prob(parameters, samples)

    def cross_entropy(self, parameters: Parameters, old: Parameters) -> Tensor:
        """Give H(π', π), ``[B]``."""
        # LaTeX: H(\pi'_t, \pi_t) = H(\pi'_t) + \mathrm{KL}(\pi'_t \,\|\, \pi_t)
        return self._head.entropy(old) + self._head.kl(old, parameters)

    def divergences(self, parameters: Parameters, old: Parameters) -> tuple[Tensor, ...]:
        """Give the whole divergence, ``[B]``."""
        # LaTeX[Song2020, eq. 5]: D_t = \mathrm{KL}(\pi'_t \,\|\, \pi_t)
        divergence = self._head.kl(old, parameters)
        return (divergence,)

    def entropy(self, parameters: Parameters) -> Tensor:
        """Give the entropies, ``[B]``."""
        return self._head.entropy(parameters)

    def metrics(self, parameters: Parameters, counted: Tensor) -> dict[str, Tensor]:
        """Give nothing: the size of a choice means nothing."""
        return {}
