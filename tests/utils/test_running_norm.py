from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch

from minerva.utils.running_norm import FrozenNorm, RunningNorm


def data(rows: int = 500, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.tensor(rng.normal(size=(rows, 3)) * [1.0, 50.0, 1e-3] + [0.0, 1000.0, 5.0])


def expected_statistics(x: torch.Tensor) -> tuple[np.ndarray, np.ndarray, float]:
    # The initial statistics count as 1e-4 of a sample with mean 0 and variance 1.
    start, values = 1e-4, x.double().numpy()
    total = start + len(values)
    mean = values.sum(0) / total
    second_moment = (start * 1.0 + (values**2).sum(0)) / total
    return mean, second_moment - mean**2, total


def test_starts_at_mean_zero_variance_one() -> None:
    norm = RunningNorm(3)
    assert (norm.mean.tolist(), norm.var.tolist(), norm.count.item()) == ([0.0] * 3, [1.0] * 3, 1e-4)
    assert norm.mean.dtype == norm.var.dtype == norm.count.dtype == torch.float64
    x = torch.tensor([[0.5, -2.0, 3.0]])
    torch.testing.assert_close(norm(x), x)


@pytest.mark.formula(
    "minerva.utils.running_norm",
    r"n = n_A + n_B",
    r"\bar{x}_B = \frac{1}{n_B} \sum_{i \in B} x_i",
    r"n_B \sigma_B^2 = \sum_{i \in B} (x_i - \bar{x}_B)^2",
    r"\bar{x} = \bar{x}_A + \delta \frac{n_B}{n}",
    r"\sigma^2 = \frac{n_A}{n} \sigma_A^2 + \frac{n_A n_B}{n^2} \delta^2 + \frac{n_B}{n} \sigma_B^2",
)
def test_one_batch_by_hand() -> None:
    norm = RunningNorm(1)
    norm.count.fill_(2.0)  # two samples with mean 0 and variance 1, then 3 and 5
    norm.update(torch.tensor([[3.0], [5.0]]))
    assert norm.count.item() == 4.0
    assert norm.mean.item() == 2.0
    assert norm.var.item() == (2 * 1 + 2 * 1 + 16 * 2 * 2 / 4) / 4  # squares within each batch and between the means


@pytest.mark.formula(
    "minerva.utils.running_norm",
    r"n = n_A + n_B",
    r"\bar{x}_B = \frac{1}{n_B} \sum_{i \in B} x_i",
    r"n_B \sigma_B^2 = \sum_{i \in B} (x_i - \bar{x}_B)^2",
    r"\delta = \bar{x}_B - \bar{x}_A",
    r"\bar{x} = \bar{x}_A + \delta \frac{n_B}{n}",
    r"\sigma^2 = \frac{n_A}{n} \sigma_A^2 + \frac{n_A n_B}{n^2} \delta^2 + \frac{n_B}{n} \sigma_B^2",
)
@pytest.mark.parametrize("splits", [[500], [1] * 500, [7, 93, 400], [250, 250], [499, 1]])
def test_any_split_of_the_data_gives_the_statistics_of_all_of_it(splits: list[int]) -> None:
    x, norm = data(), RunningNorm(3)
    for batch in torch.split(x, splits):
        norm.update(batch)
    mean, var, count = expected_statistics(x)
    np.testing.assert_allclose(norm.mean.numpy(), mean, rtol=1e-10)
    np.testing.assert_allclose(norm.var.numpy(), var, rtol=1e-6)
    assert norm.count.item() == pytest.approx(count, rel=1e-12)
    # The initial statistics have almost no weight.
    np.testing.assert_allclose(norm.mean.numpy(), x.mean(0).numpy(), rtol=1e-6, atol=1e-6)


def test_float32_data_far_from_zero_loses_nothing() -> None:
    x = (data() * torch.tensor([1.0, 0.01, 1.0]) + 1e4).float()
    norm = RunningNorm(3)
    for batch in torch.split(x, 10):
        norm.update(batch)
    mean, var, _ = expected_statistics(x)
    np.testing.assert_allclose(norm.mean.numpy(), mean, rtol=1e-12)
    np.testing.assert_allclose(norm.var.numpy(), var, rtol=1e-7)


@pytest.mark.formula(
    "minerva.utils.running_norm",
    r"\hat{x} = \mathrm{clip}\left( \frac{x - \bar{x}}{\sqrt{\sigma^2 + \epsilon}},\; -c,\; c \right)",
)
def test_normalizes_by_the_deviation_with_eps_and_clips() -> None:
    norm = RunningNorm(2, clip=3.0, eps=0.5)
    norm.mean[:], norm.var[:] = torch.tensor([1.0, -2.0]), torch.tensor([3.5, 0.0])
    out = norm(torch.tensor([[2.0, -2.5], [1e9, -1e9]], dtype=torch.float64))
    expected = torch.tensor([[1 / 2.0, -0.5 / 0.5**0.5], [3.0, -3.0]], dtype=torch.float64)
    torch.testing.assert_close(out, expected)
    assert (RunningNorm(1).clip, RunningNorm(1).eps) == (10.0, 1e-8)
    assert RunningNorm(1)(torch.tensor([[500.0], [-500.0]])).tolist() == [[10.0], [-10.0]]


@pytest.mark.parametrize("shape", [(3,), (1, 3), (4, 3), (5, 4, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_keeps_shape_and_dtype(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    norm = RunningNorm(3)
    norm.update(data())
    x = torch.randn(shape, dtype=dtype)
    out = norm(x)
    assert out.shape == shape and out.dtype == dtype
    expected = ((x.double() - norm.mean) / (norm.var + 1e-8).sqrt()).clamp(-10, 10)
    torch.testing.assert_close(out, expected.to(dtype))


def test_forward_never_changes_the_statistics() -> None:
    norm = RunningNorm(3).train()
    norm.update(data(20))
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    x = data(100, seed=1)
    kept = x.clone()
    norm(x)
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())
    assert torch.equal(x, kept)


def test_an_empty_batch_changes_nothing() -> None:
    norm = RunningNorm(3)
    norm.update(data(20))
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    norm.update(torch.empty(0, 3))
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())


def test_update_does_not_change_its_input() -> None:
    x = data(20)
    kept = x.clone()
    RunningNorm(3).update(x)
    assert torch.equal(x, kept)


def test_state_dict_round_trip() -> None:
    norm, other = RunningNorm(3), RunningNorm(3)
    norm.update(data(50))
    state = norm.state_dict()
    assert sorted(state) == ["count", "mean", "var"]
    other.load_state_dict(state)
    norm.update(data(50, seed=2))
    other.update(data(50, seed=2))  # both continue the same way
    assert all(torch.equal(norm.state_dict()[name], other.state_dict()[name]) for name in state)
    x = torch.randn(5, 3)
    assert torch.equal(norm(x), other(x))


def test_no_gradient_reaches_the_statistics_or_the_input() -> None:
    norm = RunningNorm(3)
    x = torch.randn(4, 3, requires_grad=True)
    norm.update(x)
    assert not norm(x).requires_grad
    assert not list(norm.parameters())


def test_the_arithmetic_of_other_devices_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, other = RunningNorm(3), RunningNorm(3)
    for batch in torch.split(data(), 50):
        plain.update(batch)
    expected = plain(data(5, seed=1))
    # The path for tensors on a GPU.
    monkeypatch.setattr(RunningNorm, "_float64", lambda self, x: x.detach().double())
    monkeypatch.setattr(RunningNorm, "_statistics", lambda self: (self.mean, self.var, self.count))
    for batch in torch.split(data(), 50):
        other.update(batch)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], value, rtol=1e-12, atol=0.0)
    torch.testing.assert_close(other(data(5, seed=1)), expected)


def test_see_is_update_and_then_forward() -> None:
    for passed in (0, 2):
        norm, other = RunningNorm(3, passed=passed), RunningNorm(3, passed=passed)
        for batch in torch.split(torch.cat([data(), torch.ones(500, passed)], dim=1).float(), [1, 9, 490]):
            other.update(batch)
            seen = norm.see(batch.numpy())
            assert seen.dtype == np.float32
            np.testing.assert_array_equal(seen, other(batch).numpy())
        assert all(torch.equal(value, other.state_dict()[name]) for name, value in norm.state_dict().items())


def test_a_copy_and_a_loaded_state_have_their_own_statistics() -> None:
    norm = RunningNorm(3)
    norm.update(data())
    copied, loaded = copy.deepcopy(norm), RunningNorm(3)
    loaded.update(data(3))
    loaded.load_state_dict(norm.state_dict())
    kept = norm.mean.clone()
    for other in (copied, loaded):
        other.update(data(50, seed=2))
        assert not torch.equal(other.mean, kept) and torch.equal(norm.mean, kept)
    assert torch.equal(copied.mean, loaded.mean)
    again = pickle.loads(pickle.dumps(norm))
    again.update(data(50, seed=2))
    assert torch.equal(again.mean, copied.mean) and torch.equal(norm.mean, kept)


# Outliers


def stream(rows: int = 2_000) -> np.ndarray:
    return np.random.default_rng(4).normal(size=(rows, 2)) * [1.0, 1e6] + [3.0, -5e6]


@pytest.mark.parametrize("absurd", [3e38, -3e38, 1e12, np.inf])
@pytest.mark.parametrize("at", [0, 1, 1_000])
def test_an_absurd_number_does_not_ruin_the_statistics(absurd: float, at: int) -> None:
    clean, norm, x = RunningNorm(2), RunningNorm(2), stream()
    if at == 0 and absurd == 1e12:
        return  # the first number of all is no outlier up to 1e19
    for t, row in enumerate(x):
        clean.update(row[None])
        if t == at:
            with pytest.warns(RuntimeWarning, match="an observation has the number .*e.*check the environment"):
                norm.update(np.array([[absurd, row[1]]]))
        else:
            norm.update(row[None])
    probe = torch.tensor([[0.0, -5e6], [3.0, -4e6], [5.0, -8e6]], dtype=torch.float64)
    assert norm(probe) == pytest.approx(clean(probe), abs=0.2)
    assert norm.mean[1] == pytest.approx(clean.mean[1])


def test_an_absurd_number_normalizes_to_the_clip() -> None:
    norm = RunningNorm(2)
    norm.update(stream())
    with pytest.warns(RuntimeWarning, match=r"3e\+38"):
        seen = norm.see(np.array([[3e38, -5e6], [-3e38, -5e6]], dtype=np.float32))
    assert seen[:, 0].tolist() == [10, -10]


@pytest.mark.parametrize("kind", ["constant", "grows", "from the first step", "time in nanoseconds"])
def test_large_numbers_that_are_legitimate_count_as_they_are(kind: str) -> None:
    rng = np.random.default_rng(0)
    x = {
        "constant": np.full((600, 1), 2e8),
        "grows": 1.2 ** np.arange(200.0)[:, None],  # up to 6e15
        "from the first step": rng.normal(size=(600, 1)) * 1e12,
        "time in nanoseconds": 1.7e18 + np.arange(600.0)[:, None] * 5e7,
    }[kind]
    norm = RunningNorm(1)
    for row in x:
        norm.update(row[None])
    mean, var, count = expected_statistics(torch.from_numpy(x))
    assert norm.count.item() == pytest.approx(count)
    np.testing.assert_allclose(norm.mean.numpy(), mean, rtol=1e-9)
    np.testing.assert_allclose(norm.var.numpy(), var, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:an observation has")
def test_numbers_that_all_become_large_are_learned_in_the_end() -> None:
    norm = RunningNorm(1)
    norm.update(np.random.default_rng(0).normal(size=(1_000, 1)))
    assert norm(torch.tensor([[1e11]], dtype=torch.float64)).item() == 10
    large = np.random.default_rng(1).normal(size=(5_000, 1)) * 1e11
    for row in large:
        norm.update(row[None])
    assert abs(norm(torch.tensor([[1e11]], dtype=torch.float64)).item()) < 2


def test_a_tensor_is_treated_like_an_array() -> None:
    one, two, x = RunningNorm(2), RunningNorm(2), stream(50)
    x[30, 0] = 1e30
    for rows in np.split(x, 10):
        for norm, batch in ((one, rows), (two, torch.from_numpy(rows))):
            if np.abs(rows).max() < 1e20:
                norm.update(batch)
            else:
                with pytest.warns(RuntimeWarning, match="an observation has the number 1e"):
                    norm.update(batch)
    assert one.var.tolist() == two.var.tolist()


def test_outliers_are_warned_about_at_the_first_tenth_and_hundredth() -> None:
    norm = RunningNorm(1)
    norm.update(np.random.default_rng(0).normal(size=(100_000, 1)))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(120):
            norm.update(np.array([[1e30]]))
    assert [str(one.message).split("(")[1].split()[0] for one in said] == ["1", "10", "100"]


def test_frozen_statistics_stay_until_what_several_saw_is_merged() -> None:
    x = data().numpy().astype(np.float32)
    whole, shared = RunningNorm(3), RunningNorm(3)
    for norm in (whole, shared):
        norm.update(x[:100])
    before, frozen = copy.deepcopy(shared), [FrozenNorm(shared), FrozenNorm(copy.deepcopy(shared))]
    for i, seen in enumerate(np.split(x[100:], 20)):
        normalized = frozen[i % 2].see(seen)
        assert normalized.dtype == np.float32
        np.testing.assert_array_equal(normalized, before(torch.from_numpy(seen)).numpy())
    assert all(torch.equal(part, before.state_dict()[name]) for name, part in shared.state_dict().items())
    for one in frozen:
        shared.merge(one.take())
    whole.update(x[100:])
    for name, part in whole.state_dict().items():
        torch.testing.assert_close(shared.state_dict()[name], part, rtol=1e-12, atol=0)
    merged = copy.deepcopy(shared.state_dict())
    shared.merge(frozen[0].take())  # nothing since
    assert all(torch.equal(part, merged[name]) for name, part in shared.state_dict().items())


def test_frozen_statistics_count_an_absurd_number_as_it_is_clipped_and_pass_masks() -> None:
    norm = RunningNorm(2, clip=5, passed=1)
    norm.update(torch.randn(1000, 3, generator=torch.Generator().manual_seed(0)))
    frozen = FrozenNorm(norm)
    with pytest.warns(RuntimeWarning, match="an observation has the number 1e\\+30"):
        normalized = frozen.see(np.array([[1e30, 0, 7]], np.float32))
    assert normalized[0, 0] == 5 and normalized[0, 2] == 7
    limit = norm.mean[0] + 5 * norm.var[0].sqrt()
    torch.testing.assert_close(frozen.take(), torch.tensor([1, limit.item(), 0, 0, 0], dtype=torch.float64))
