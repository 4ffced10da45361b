"""V-MPO's E-step (Song et al. 2020): the weight of each sample of a rollout, and the temperature.

Symbols: A advantages, w restarting weights (0 for a step that crosses into a new episode, else 1), η temperature,
s scaled advantages, ρ fraction of samples to keep, w̄ weights of the kept samples, ω importance weights, ψ weights of
the M-step. The M-step's trust region is in `minerva.objectives.lagrange` and `minerva.objectives.kl`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from minerva.objectives.weighted import weighted_mean, weighted_variance


def normalize_advantages(advantages: Tensor, counted: Tensor) -> Tensor:
    """Normalize advantages: center them and divide by their population standard deviation.

    Args:
        advantages: A, ``[B]``.
        counted: 1 for samples that count, else 0, ``[B]``.

    Returns:
        Â, ``[B]``.
    """
    mean = weighted_mean(advantages, counted)
    deviation = weighted_variance(advantages, counted).sqrt()
    # LaTeX: \hat{A} = \frac{A - \mathbb{E}[A]}{\sqrt{\mathrm{Var}[A]} + 10^{-8}}
    return (advantages - mean) / (deviation + 1e-8)


def scale_advantages(advantages: Tensor, restarting_weights: Tensor, temperature: Tensor) -> Tensor:
    """Divide advantages by the temperature; restarting steps get 0.

    Args:
        advantages: Â, ``[B]``.
        restarting_weights: w, ``[B]``.
        temperature: η, a scalar.

    Returns:
        s, ``[B]``.
    """
    # LaTeX: s_t = \frac{w_t \hat{A}_t}{\eta}
    return restarting_weights * advantages / temperature


class Selection(NamedTuple):
    """The samples that V-MPO's E-step keeps."""

    weights: Tensor  # w̄, [B]
    threshold: Tensor  # τ, scalar: the smallest scaled advantage that is kept
    k: Tensor  # scalar: number of samples to keep; ties at τ may keep more


def select_top(scaled: Tensor, restarting_weights: Tensor, fraction: float) -> Selection:
    """Select the samples with the largest advantages (Song et al. 2020, sec. 4.2.1: the top half), without gradient.

    Args:
        scaled: s, ``[B]``.
        restarting_weights: w, ``[B]``.
        fraction: ρ, of the samples with w > 0; 1 keeps them all.

    Returns:
        w̄, τ and k. If no sample has w > 0 and ρ = 1, all are kept with weight 1. If ρ is too small to keep one sample,
        k and all of w̄ are 0.

    Raises:
        ValueError: ρ is not in (0, 1].
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"topk_fraction: must lie in (0, 1], got {fraction}; 0.5 keeps the better half.")
    scaled, counted = scaled.detach(), restarting_weights > 0
    if fraction == 1:
        none_counted = ~counted.any()
        kept = counted | none_counted
        weights = torch.where(none_counted, 1.0, restarting_weights * counted)
        return Selection(weights, torch.where(kept, scaled, torch.inf).min(), kept.sum())
    # LaTeX: k = \lfloor \rho N \rfloor
    k = (fraction * counted.sum().double() + 1e-9).long()  # in floating point, 0.29 * 100 is less than 29
    ordered = torch.where(counted, scaled, -torch.inf).sort(descending=True).values
    # LaTeX[Song2020, sec. 4.2.1]: \tau = \min\, \mathrm{top}_k\, \{ s_t : w_t > 0 \}
    threshold = ordered.gather(0, (k - 1).clamp(min=0).view(1)).squeeze(0)
    # LaTeX[Song2020, sec. 4.2.1]: \bar{w}_t = w_t\, \mathbb{1}[ s_t \ge \tau ]
    return Selection(restarting_weights * (counted & (scaled >= threshold) & (k > 0)), threshold, k)


class EStep(NamedTuple):
    """The result of V-MPO's E-step: the weights of the M-step and the loss of their temperature."""

    weights: Tensor  # ψ, [B], summing to 1; no gradient
    temperature_loss: Tensor  # L_η, scalar


def e_step(scaled: Tensor, selected: Tensor, importance_weights: Tensor, temperature: Tensor, epsilon: float) -> EStep:
    """Compute V-MPO's E-step: weigh the kept samples by their advantages (Song et al. 2020, eq. 3-4).

    Args:
        scaled: s, ``[B]``, scaled by the same temperature.
        selected: w̄, ``[B]``.
        importance_weights: ω, off-policy corrections, ``[B]``; without gradient.
        temperature: η, a scalar.
        epsilon: ε_η.

    Returns:
        ψ and L_η.
    """
    kept, importance = selected > 0, importance_weights.detach()
    # The maximum of the kept samples only: a larger one elsewhere would let all their exponentials underflow.
    highest = torch.where(kept, scaled, -torch.inf).max().detach()
    shifted = torch.where(kept, scaled - highest, 0.0)
    # LaTeX: \tilde{\psi}_t = \bar{w}_t\, \omega_t \exp(s_t - s_{\max}), \quad s_{\max} = \max_{u:\, \bar{w}_u > 0} s_u
    unnormalized = selected * importance * shifted.exp()
    total = unnormalized.sum()
    # LaTeX[Song2020, eq. 3]: \psi_t = \frac{\tilde{\psi}_t}{\sum_u \tilde{\psi}_u}
    weights = (unnormalized / total).detach()
    # LaTeX[Song2020, eq. 4]: L_\eta = \eta \left( \epsilon_\eta + \log \sum_t \tilde{\psi}_t + s_{\max} - \log \sum_t \bar{w}_t \right)
    loss = temperature * (epsilon + total.log() + highest - selected.sum().log())
    return EStep(weights, loss)


def weighted_nll(log_probs: Tensor, weights: Tensor) -> Tensor:
    """Compute the negative log-likelihood of the weighted actions (Song et al. 2020, eq. 3).

    Args:
        log_probs: log π(a_t | s_t), ``[B]``.
        weights: ψ, ``[B]``.

    Returns:
        L_NLL, a scalar.
    """
    # LaTeX[Song2020, eq. 3]: L_{\mathrm{NLL}} = -\sum_t \psi_t \log \pi(a_t | s_t)
    return -(weights * log_probs).sum()


def sampling_noise(log_probs: Tensor, cross_entropy: Tensor, exactness: Tensor) -> Tensor:
    """Compute each sample's negative log-likelihood minus its mean over the policy that sampled it.

    Its mean is 0 for every policy that does not depend on the samples, and it correlates with `weighted_nll`, whose
    weights are all positive: a control variate with nothing to estimate. Where tanh saturates, u is clipped, and the
    mean is not 0: it pulls the policy back into the bounds. There the control variate is faded out.

    Args:
        log_probs: log N(u_t; μ_t, σ_t) of the samples before tanh, ``[B]``; for discrete actions log π(a_t|s_t).
        cross_entropy: H(N', N) in their states, ``[B]``; for discrete policies H(π', π).
        exactness: f_t, from 0 where tanh saturates to 1, ``[B]``. It depends on the old policy alone.

    Returns:
        n, ``[B]``.
    """
    # LaTeX: n_t = f_t \left( -\log \mathcal{N}(u_t; \mu_t, \sigma_t) - H(\mathcal{N}'_t, \mathcal{N}_t) \right)
    return exactness * (-log_probs - cross_entropy)
