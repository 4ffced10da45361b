"""The two halves of the KL divergence of diagonal Gaussians (Abdolmaleki et al. 2018b; Song et al. 2020, app. C).

MPO and V-MPO bound the change of the mean and of the standard deviation separately: each half is the divergence from
the old policy to one where only that parameter changed. One value per action dimension; the caller sums or averages.
"""

from __future__ import annotations

from torch import Tensor


def kl_of_means(mean: Tensor, old_mean: Tensor, old_log_std: Tensor) -> Tensor:
    """Compute the KL divergence of Gaussians that differ in the mean, KL(N(μ', σ') ‖ N(μ, σ')), per dimension.

    Args:
        mean: μ, ``[..., A]``.
        old_mean: μ', the same shape.
        old_log_std: log σ', the same shape.

    Returns:
        D_μ, ``[..., A]``.
    """
    # LaTeX[Song2020, app. C]: D_{\mu,j} = \frac{(\mu_j - \mu'_j)^2}{2 \sigma_j'^2}
    return 0.5 * (mean - old_mean) ** 2 * (-2 * old_log_std).exp()


def kl_of_stds(log_std: Tensor, old_log_std: Tensor) -> Tensor:
    """Compute the KL divergence of Gaussians that differ in the deviation, KL(N(μ', σ') ‖ N(μ', σ)), per dimension.

    Args:
        log_std: log σ, ``[..., A]``.
        old_log_std: log σ', the same shape.

    Returns:
        D_σ, ``[..., A]``.
    """
    # LaTeX: \Delta_j = \log \sigma_j - \log \sigma'_j
    change = log_std - old_log_std
    # With exp(x) - 1 for expm1(x), a change of 1e-4 would have no correct digit in float32, perhaps a wrong sign.
    # LaTeX[Song2020, app. C]: D_{\sigma,j} = \tfrac12 \left( \frac{\sigma_j'^2}{\sigma_j^2} - 1 + 2 \Delta_j \right)
    return 0.5 * ((-2 * change).expm1() + 2 * change)
