from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import distributions
from torch.distributions import transforms

from minerva.networks.heads import (
    ActionHead,
    BernoulliHead,
    DistParams,
    GaussianHead,
    MultiCategoricalHead,
    SquashedGaussianHead,
    head_for,
)

NVEC = [3, 2, 5, 1]
HEADS: dict[str, ActionHead] = {
    "gaussian": GaussianHead(3),
    "squashed": SquashedGaussianHead([-1.0, 0.5, -2.0], [3.0, 1.0, 2.0]),
    "categorical": MultiCategoricalHead([5]),
    "multi-categorical": MultiCategoricalHead(NVEC),
    "bernoulli": BernoulliHead(4),
}


def random_parameters(
    head: ActionHead, seed: int, batch: Sequence[int] = (7,), dtype: torch.dtype = torch.float64
) -> DistParams:
    rng = np.random.default_rng(seed)
    numbers = torch.tensor(rng.normal(size=(*batch, head.size)), dtype=dtype)
    if isinstance(head, GaussianHead):
        shape = (1, head.size) if batch else (head.size,)
        return numbers, torch.tensor(rng.normal(size=shape) * 0.5, dtype=dtype)
    return (2 * numbers,)


def random_noise(head: ActionHead, seed: int, batch: Sequence[int] = (7,)) -> torch.Tensor:
    draw = torch.randn if head.noise == "normal" else torch.rand
    return draw(*batch, head.action_dim, generator=torch.Generator().manual_seed(seed))


def random_mask(head: ActionHead, seed: int, rows: int) -> torch.Tensor:
    """``[B, K]``, at least one 1 in each choice."""
    rng = np.random.default_rng(seed)
    mask = rng.integers(0, 2, size=(rows, head.mask_dim))
    start = 0
    for n in [head.mask_dim] if head.action_dim == 1 else NVEC:
        mask[np.arange(rows), start + rng.integers(0, n, size=rows)] = 1
        start += n
    return torch.tensor(mask, dtype=torch.float32)


class OfTorch:
    """The same distribution, as torch has it."""

    def __init__(self, head: ActionHead, parameters: DistParams) -> None:
        self.parts: list[Any]
        if isinstance(head, GaussianHead):
            mean, log_std = parameters
            self.parts = [distributions.Independent(distributions.Normal(mean, log_std.exp().expand_as(mean)), 1)]
            if isinstance(head, SquashedGaussianHead):
                center, half = (head.high + head.low) / 2, (head.high - head.low) / 2
                squash = [transforms.TanhTransform(), transforms.AffineTransform(center, half, event_dim=1)]
                self.squashed: Any = distributions.TransformedDistribution(self.parts[0], squash)
        elif isinstance(head, BernoulliHead):
            self.parts = [distributions.Independent(distributions.Bernoulli(logits=parameters[0]), 1)]
        else:
            nvec = [head.size] if head.action_dim == 1 else NVEC
            groups = torch.split(parameters[0], nvec, dim=-1)
            self.parts = [distributions.Categorical(logits=logits) for logits in groups]
        self.head = head

    def log_prob(self, actions: torch.Tensor) -> torch.Tensor:
        if isinstance(self.head, SquashedGaussianHead):
            density: torch.Tensor = self.squashed.log_prob(actions)
            return density
        if isinstance(self.head, (GaussianHead, BernoulliHead)):
            log_prob: torch.Tensor = self.parts[0].log_prob(actions)
            return log_prob
        pairs = zip(self.parts, actions.unbind(-1), strict=True)
        return sum((part.log_prob(column) for part, column in pairs), torch.zeros(()))

    def entropy(self) -> torch.Tensor:
        return sum((part.entropy() for part in self.parts), torch.zeros(()))

    def kl(self, other: OfTorch) -> torch.Tensor:
        pairs = zip(self.parts, other.parts, strict=True)
        return sum((distributions.kl_divergence(*pair) for pair in pairs), torch.zeros(()))


each_head = pytest.mark.parametrize("name", HEADS)
each_head_but_squashed = pytest.mark.parametrize("name", [name for name in HEADS if name != "squashed"])
each_masked_head = pytest.mark.parametrize("name", ["categorical", "multi-categorical"])


@pytest.mark.formula("minerva.networks.heads.MultiCategoricalHead.log_prob", r"\log p(a) = \sum_g \log p_g(a_g)")
@pytest.mark.formula("minerva.networks.heads.MultiCategoricalHead.entropy", r"H = \sum_g H(p_g)")
@pytest.mark.formula("minerva.networks.heads.MultiCategoricalHead.kl", r"D = \sum_g D(p_g \,\|\, q_g)")
@pytest.mark.formula(
    "minerva.networks.heads.SquashedGaussianHead.log_prob",
    r"\log \pi(a) = \log \mathcal{N}(u; \mu, \sigma) - \log \left| \frac{\partial a}{\partial u} \right|",
)
@pytest.mark.formula(
    "minerva.networks.heads.GaussianHead.kl",
    r"D = \sum_j \left( \frac{(\mu_j - \mu'_j)^2}{2 \sigma_j^2} + D_{\sigma,j} \right)",
)
@each_head
@pytest.mark.parametrize("batch", [(7,), (2, 3), ()])
def test_against_torch(name: str, batch: Sequence[int]) -> None:
    head = HEADS[name]
    parameters, other = random_parameters(head, 0, batch), random_parameters(head, 1, batch)
    actions = head.sample(parameters, random_noise(head, 2, batch)).double()
    found = head.log_prob(parameters, actions), head.entropy(parameters), head.kl(parameters, other)
    of_torch = OfTorch(head, parameters)
    expected = of_torch.log_prob(actions), of_torch.entropy(), of_torch.kl(OfTorch(head, other))
    for x, y in zip(found, expected, strict=True):
        assert x.shape == tuple(batch)
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


@each_head
def test_shapes_and_dtypes(name: str) -> None:
    head = HEADS[name]
    parameters = random_parameters(head, 3, (4, 2), torch.float32)
    assert parameters[0].shape == (4, 2, head.size)
    for actions in (head.sample(parameters, random_noise(head, 4, (4, 2))), head.mode(parameters)):
        assert actions.shape == (4, 2, head.action_dim) and actions.dtype == torch.float32
        assert head.log_prob(parameters, actions).shape == (4, 2)


@each_head_but_squashed
def test_the_mode_is_likelier_than_any_sample(name: str) -> None:
    head = HEADS[name]
    parameters = random_parameters(head, 5)
    best = head.log_prob(parameters, head.mode(parameters))
    for seed in range(50):
        assert (head.log_prob(parameters, head.sample(parameters, random_noise(head, seed)).double()) <= best).all()


@each_head_but_squashed
def test_the_mean_log_probability_of_samples_is_the_negative_entropy(name: str) -> None:
    head = HEADS[name]
    count = 100_000
    parameters = random_parameters(head, 6, (1,))
    wide = tuple(x.expand(count, -1) for x in parameters)
    log_probs = head.log_prob(wide, head.sample(wide, random_noise(head, 7, (count,))).double())
    error = 5 * log_probs.std().item() / math.sqrt(count)
    assert log_probs.mean().item() == pytest.approx(-head.entropy(parameters).item(), abs=error)


@each_head
def test_gradients_under_torch_func_equal_those_of_torchs_distributions(name: str) -> None:
    head = HEADS[name]
    parameters, other = random_parameters(head, 8), random_parameters(head, 9)
    actions = head.sample(parameters, random_noise(head, 10)).double()
    weights = torch.linspace(-1, 1, 7)

    def loss(parameters: DistParams, other: DistParams) -> torch.Tensor:
        terms = head.log_prob(parameters, actions) + 0.3 * head.entropy(parameters) + 0.7 * head.kl(parameters, other)
        return (weights * terms).sum()

    found = torch.func.grad(loss, argnums=(0, 1))(parameters, other)
    leaves = [x.clone().requires_grad_() for x in (*parameters, *other)]
    first = OfTorch(head, tuple(leaves[: len(parameters)]))
    terms = first.log_prob(actions) + 0.3 * first.entropy() + 0.7 * first.kl(OfTorch(head, tuple(leaves[len(other) :])))
    expected = torch.autograd.grad((weights * terms).sum(), leaves)
    for x, y in zip((*found[0], *found[1]), expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-11)


def all_of(head: ActionHead, logits: torch.Tensor, mask: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, ...]:
    parameters = head.masked((logits,), mask)
    actions = head.sample(parameters, noise)
    kl = head.kl(parameters, head.masked((logits.flip(0),), mask))
    return actions, head.mode(parameters), head.log_prob(parameters, actions), head.entropy(parameters), kl


def test_compiles_as_a_whole() -> None:
    head = HEADS["multi-categorical"]
    inputs = torch.randn(6, head.size), random_mask(head, 11, 6), random_noise(head, 11, (6,))
    whole = torch.compile(lambda *inputs: all_of(head, *inputs), fullgraph=True, dynamic=False, backend="aot_eager")
    for found, expected in zip(whole(*inputs), all_of(head, *inputs), strict=True):
        torch.testing.assert_close(found, expected)


@each_masked_head
def test_a_mask_that_allows_everything_changes_no_bit(name: str) -> None:
    head = HEADS[name]
    parameters = random_parameters(head, 12, (50,), torch.float32)
    masked = head.masked(parameters, torch.ones(50, head.mask_dim))
    noise = random_noise(head, 13, (50,))
    actions = head.sample(parameters, noise)
    assert torch.equal(head.sample(masked, noise), actions)
    assert torch.equal(head.mode(masked), head.mode(parameters))
    assert torch.equal(head.log_prob(masked, actions), head.log_prob(parameters, actions))
    assert torch.equal(head.entropy(masked), head.entropy(parameters))


@each_masked_head
def test_what_is_masked_is_never_taken_and_everything_stays_finite(name: str) -> None:
    head = HEADS[name]
    rows = 2000
    logits = random_parameters(head, 14, (rows,), torch.float32)[0].requires_grad_()
    mask = random_mask(head, 15, rows)
    mask[0] = 1
    parameters, other = head.masked((logits,), mask), head.masked((logits.detach().flip(0),), mask)
    ends = np.cumsum(NVEC if name == "multi-categorical" else [5])
    for noise in (random_noise(head, 16, (rows,)), torch.zeros(rows, len(ends)), torch.ones(rows, len(ends))):
        arrays = tuple(x.detach().numpy() for x in parameters)
        for actions in (head.sample(parameters, noise), torch.from_numpy(head.sample_numpy(arrays, noise.numpy()))):
            places = actions.long() + torch.tensor([0, *ends[:-1]])
            assert mask.gather(-1, places).all()
    assert mask.gather(-1, head.mode(parameters).long() + torch.tensor([0, *ends[:-1]])).all()
    actions = head.sample(parameters, random_noise(head, 17, (rows,)))
    terms = head.log_prob(parameters, actions) + head.entropy(parameters) + head.kl(parameters, other)
    (gradient,) = torch.autograd.grad(terms.sum(), logits)
    assert terms.isfinite().all() and gradient.isfinite().all()
    assert (gradient[mask == 0] == 0).all()


@pytest.mark.parametrize("name", ["gaussian", "squashed", "bernoulli"])
def test_heads_without_masks_say_so(name: str) -> None:
    head = HEADS[name]
    assert head.mask_dim == 0
    with pytest.raises(ValueError, match=r"takes none, got one of shape \(7, 3\); masks are for Discrete"):
        head.masked(random_parameters(head, 0), torch.ones(7, 3))


@pytest.mark.formula(
    "minerva.networks.heads.GaussianHead.sample", r"a = \mu + \sigma \xi, \quad \xi \sim \mathcal{N}(0, I)"
)
@pytest.mark.formula(
    "minerva.networks.heads.GaussianHead.sample_numpy", r"a = \mu + \sigma \xi, \quad \xi \sim \mathcal{N}(0, I)"
)
def test_a_gaussian_sample() -> None:
    head = HEADS["gaussian"]
    mean, log_std = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[0.5, 1.0, 2.0]]).log()
    noise = torch.tensor([[1.0, -1.0, 0.5]])
    torch.testing.assert_close(head.sample((mean, log_std), noise), torch.tensor([[1.5, 1.0, 4.0]]))
    parameters = random_parameters(head, 18, (500,), torch.float32)
    noise = random_noise(head, 19, (500,))
    mean_array, log_std_array = (x.numpy() for x in parameters)
    found = head.sample_numpy((mean_array, log_std_array), noise.numpy())
    assert found.dtype == np.float32
    assert (found == mean_array + np.exp(log_std_array) * noise.numpy()).all()  # to the last bit
    np.testing.assert_allclose(found, head.sample(parameters, noise), rtol=1e-6, atol=1e-6)


@pytest.mark.formula("minerva.networks.heads.SquashedGaussianHead.squash", r"a_j = c_j + h_j \tanh(u_j)")
@pytest.mark.formula("minerva.networks.heads.SquashedGaussianHead.numpy_sampler.sample", r"a_j = c_j + h_j \tanh(u_j)")
@pytest.mark.formula(
    "minerva.networks.heads",
    r"c_j = \tfrac12 (a_{\max,j} + a_{\min,j})",
    r"h_j = \tfrac12 (a_{\max,j} - a_{\min,j})",
)
def test_a_squashed_gaussian_sample() -> None:
    head = HEADS["squashed"]
    params = torch.tensor([[1.0, 0.0, -1.0]]), torch.tensor([[0.5, 1.0, 2.0]]).log()
    noise = torch.tensor([[1.0, -1.0, 0.5]])
    expected = [1 + 2 * math.tanh(1.5), 0.75 + 0.25 * math.tanh(-1.0), 0.0]
    assert head.sample(params, noise)[0].tolist() == pytest.approx(expected, rel=1e-5)
    assert head.mode(params)[0].tolist() == pytest.approx([1 + 2 * math.tanh(1), 0.75, 2 * math.tanh(-1)], rel=1e-5)
    sampler = head.numpy_sampler()
    mean, log_std = random_parameters(head, 18, (500,), torch.float32)
    noise = random_noise(head, 19, (500,))
    mean[0], noise[1] = 60.0, -60.0  # at the bounds,
    log_std = log_std.expand(500, 3).clone()
    log_std[2:6] = torch.tensor([[-30.0], [-20.5], [2.5], [9.0]])  # and beyond the range of a deviation
    arrays = mean.numpy(), log_std.numpy()
    kept = [array.copy() for array in arrays]
    found = sampler(arrays, noise.numpy())
    assert found.dtype == np.float32 and all((a == b).all() for a, b in zip(arrays, kept, strict=True))
    exact = head.sample(head.distribution(mean, log_std), noise)
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-6)
    assert isinstance(head, SquashedGaussianHead)
    for actions in (torch.from_numpy(found), exact):
        assert (actions >= head.low).all() and (actions <= head.high).all()


def test_only_a_squashed_gaussian_has_a_sampler_that_is_not_its_sample() -> None:
    for name, head in HEADS.items():
        assert (head.numpy_sampler() == head.sample_numpy) == (name != "squashed")


def test_a_squashed_gaussians_deviation_is_kept_in_its_range_and_its_bounds_are_saved() -> None:
    head = HEADS["squashed"]
    mean, log_std = head.distribution(torch.zeros(4, 3), torch.tensor([[-50.0, 0.5, 50.0]]))
    assert mean.shape == (4, 3) and log_std.tolist() == [[-20.0, 0.5, 2.0]] * 4
    assert isinstance(head, SquashedGaussianHead)
    other = SquashedGaussianHead([-1.0] * 3, [1.0] * 3)
    other.load_state_dict(head.state_dict())
    assert other.low.tolist() == [-1.0, 0.5, -2.0] and other.high.tolist() == [3.0, 1.0, 2.0]


@each_head
def test_noise_is_drawn_from_the_generator_given_and_no_other(name: str) -> None:
    head = HEADS[name]
    before = torch.random.get_rng_state()
    first, again = (
        head.draw_noise((3, 2), torch.Generator().manual_seed(1), torch.zeros(1, dtype=torch.float64)) for _ in range(2)
    )
    assert torch.equal(first, again) and torch.equal(torch.random.get_rng_state(), before)
    assert first.shape == (3, 2, head.action_dim) and first.dtype == torch.float64
    assert (first < 0).any() == (head.noise == "normal")


def boundaries(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    p = np.exp(logits - logits.max(-1, keepdims=True))
    cumulative: NDArray[np.float64] = np.cumsum(p, axis=-1) / p.sum(-1, keepdims=True)
    return cumulative


@pytest.mark.formula(
    "minerva.networks.heads",
    r"F_i = \frac{\sum_{k \le i} e^{l_k}}{\sum_{k} e^{l_k}}",
    r"a = \left| \{ i : F_i \le u \} \right|",
)
@each_masked_head
@pytest.mark.parametrize("with_mask", [False, True])
def test_numpy_samples_the_same_choices(name: str, with_mask: bool) -> None:
    head = HEADS[name]
    rows = 20_000
    parameters = random_parameters(head, 20, (rows,), torch.float32)
    if with_mask:
        parameters = head.masked(parameters, random_mask(head, 21, rows))
    noise = random_noise(head, 22, (rows,))
    logits = parameters[0].numpy()
    found = head.sample_numpy((logits,), noise.numpy())
    assert found.dtype == np.float32 and found.shape == (rows, head.action_dim)
    # Both against exact arithmetic; only a number within rounding of a boundary is free to fall on either side of it.
    nvec = NVEC if name == "multi-categorical" else [5]
    for i, part in enumerate(np.split(logits.astype(np.float64), np.cumsum(nvec)[:-1], axis=-1)):
        exact = boundaries(part)
        u = noise[:, i : i + 1].numpy().astype(np.float64)
        clear = (np.abs(exact - u) > 1e-6).all(-1)
        assert clear.mean() > 0.999
        expected = (exact <= u).sum(-1)
        assert (found[clear, i] == expected[clear]).all()
        assert (head.sample(parameters, noise).numpy()[clear, i] == expected[clear]).all()


@pytest.mark.formula("minerva.networks.heads", r"\sigma(l_j) = e^{-\log(1 + e^{-l_j})}")
def test_numpy_samples_the_same_switches() -> None:
    head = HEADS["bernoulli"]
    parameters = random_parameters(head, 23, (20_000,), torch.float32)
    noise = random_noise(head, 24, (20_000,))
    found = head.sample_numpy((parameters[0].numpy(),), noise.numpy())
    assert found.dtype == np.float32
    distance = (parameters[0].double().sigmoid() - noise).abs()
    clear = distance > 1e-6
    assert clear.float().mean() > 0.999
    assert (torch.from_numpy(found)[clear] == head.sample(parameters, noise)[clear]).all()
    far = np.array([[-1000.0, -100.0, 100.0, 1000.0]], dtype=np.float32)  # and no warning of an overflow
    for u in (0.0, 1 - 2**-24):
        sampled = head.sample_numpy((far,), np.full((1, 4), u, dtype=np.float32))
        assert sampled[:, [0, 2, 3]].tolist() == [[0, 1, 1]]


def test_the_head_of_a_space() -> None:
    box = head_for(spaces.Box(-1, 1, (2, 3)))
    assert isinstance(box, GaussianHead) and (box.action_dim, box.size, box.mask_dim, box.noise) == (6, 6, 0, "normal")
    one = head_for(spaces.Discrete(4, start=-1))
    assert isinstance(one, MultiCategoricalHead) and one.counts == [4]
    assert (one.action_dim, one.size, one.mask_dim, one.noise) == (1, 4, 4, "uniform")
    several = head_for(spaces.MultiDiscrete(np.array([[3, 2], [4, 1]])))
    assert isinstance(several, MultiCategoricalHead)
    assert (several.action_dim, several.size, several.mask_dim, several.noise) == (4, 10, 10, "uniform")
    switches = head_for(spaces.MultiBinary([2, 3]))
    assert isinstance(switches, BernoulliHead)
    assert (switches.action_dim, switches.size, switches.mask_dim, switches.noise) == (6, 6, 0, "uniform")
    cartpole = gymnasium.make("CartPole-v1")
    assert head_for(cartpole.action_space).counts == [2]
    cartpole.close()


def test_other_spaces_are_refused() -> None:
    with pytest.raises(ValueError, match=r"must be a Box, Discrete, MultiDiscrete or MultiBinary, got Tuple.* Wrap"):
        head_for(spaces.Tuple([spaces.Discrete(2)]))
