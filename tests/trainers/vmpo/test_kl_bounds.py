from __future__ import annotations

import pytest

from minerva.networks.heads import (
    ActionHead,
    BernoulliHead,
    MultiCategoricalHead,
    SquashedGaussianHead,
)
from minerva.trainers.vmpo.config import VMPOConfig
from minerva.trainers.vmpo.update import kl_bounds

CONFIG = VMPOConfig(epsilon_mu=0.02, epsilon_sigma=0.03)


def test_mean_and_deviation_have_bounds_of_their_own() -> None:
    bounds = kl_bounds(SquashedGaussianHead([-1.0], [1.0]), CONFIG)
    assert [(bound.epsilon, bound.multiplier) for bound in bounds] == [(0.02, "mu"), (0.03, "sigma")]


@pytest.mark.parametrize("head", [MultiCategoricalHead([4]), MultiCategoricalHead([3, 2]), BernoulliHead(3)])
def test_a_discrete_policy_has_one_bound(head: ActionHead) -> None:
    assert [(bound.epsilon, bound.multiplier) for bound in kl_bounds(head, CONFIG)] == [(0.02, "policy")]
