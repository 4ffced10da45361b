from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call, grad

from minerva.networks.numpy_mlp import NumpyLSTM
from minerva.networks.recurrent import LSTMCore
from tests.networks.samples import move_parameters

T, N, F, UNITS = 23, 5, 4, 6


def random_core(layer_norm: bool = False, dtype: torch.dtype = torch.float64) -> LSTMCore:
    torch.manual_seed(0)
    core = LSTMCore(F, UNITS, layer_norm)
    move_parameters(core, 0.3)  # biases and the norms' scales must matter
    return core.to(dtype)


def random_inputs(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(T, N, F, generator=generator, dtype=dtype)
    return x, torch.randn(N, 2 * UNITS, generator=generator, dtype=dtype)


def starts_of(kind: str) -> torch.Tensor:
    """``[T, N]``."""
    starts = torch.zeros(T, N)
    if kind == "at the first step of some":
        starts[0, [0, 3]] = 1
    elif kind == "one":
        starts[7, 2] = 1
    elif kind == "at the last step":
        starts[-1, 1:] = 1
    elif kind == "consecutive":
        starts[[0, 1, 2, 9, 10], 0] = 1
        starts[[T - 2, T - 1], 4] = 1
    elif kind == "at every step":
        starts[:] = 1
    elif kind == "some":
        starts = (torch.rand(T, N, generator=torch.Generator().manual_seed(2)) < 0.15).float()
        starts[0, 4] = 1
    elif kind == "many short episodes in one":
        starts[::2, 1] = 1
        starts[10, 3] = 1
    else:
        assert kind == "none"
    return starts


KINDS = (
    "none", "at the first step of some", "one", "at the last step", "consecutive", "at every step", "some",
    "many short episodes in one",
)  # fmt: skip


def one_by_one(
    core: LSTMCore, x: torch.Tensor, state: torch.Tensor, starts: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    outputs = []
    for t in range(len(x)):
        state = torch.where(starts[t, :, None] > 0, torch.zeros(()), state)
        out, state = core.step(x[t], state)
        outputs.append(out)
    return torch.stack(outputs), state


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def normalized(row: NDArray[np.float64], norm: nn.Module) -> NDArray[np.float64]:
    if isinstance(norm, nn.Identity):
        return row
    assert isinstance(norm, nn.LayerNorm)
    centered = row - row.mean()
    weight, bias = norm.weight.detach().numpy(), norm.bias.detach().numpy()
    result: NDArray[np.float64] = centered / np.sqrt((centered**2).mean() + 1e-5) * weight + bias
    return result


def oracle_step(
    core: LSTMCore, x: NDArray[np.float64], h: NDArray[np.float64], c: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """One cell after the other of one sequence."""
    of_x = normalized(np.array([float(row @ x) for row in core.weight_x.detach().numpy()]), core.norm_x)
    of_h = normalized(np.array([float(row @ h) for row in core.weight_h.detach().numpy()]), core.norm_h)
    gates = of_x + of_h + core.bias.detach().numpy()
    content = np.zeros_like(c)
    for unit in range(UNITS):
        forget, take = sigmoid(gates[UNITS + unit]), sigmoid(gates[unit])
        content[unit] = forget * c[unit] + take * math.tanh(gates[2 * UNITS + unit])
    shown = normalized(content, core.norm_c)
    out = [sigmoid(gates[3 * UNITS + unit]) * math.tanh(shown[unit]) for unit in range(UNITS)]
    return np.array(out), content


@pytest.mark.formula(
    "minerva.networks.recurrent",
    r"z^x_t = W_x x_t + b",
    r"i, f, g, o = z^x_t + W_h h_{t-1}",
)
@pytest.mark.formula("minerva.networks.recurrent.LSTMCore._cells", r"c_t = \sigma(f)\, c_{t-1} + \sigma(i) \tanh(g)")
@pytest.mark.formula("minerva.networks.recurrent.LSTMCore._cells", r"h_t = \sigma(o) \tanh(c_t)")
@pytest.mark.parametrize("layer_norm", [False, True])
def test_a_step_against_the_oracle(layer_norm: bool) -> None:
    core = random_core(layer_norm)
    x, state = random_inputs()
    out, after = core.step(x[0], state)
    assert out.shape == (N, UNITS) and after.shape == (N, 2 * UNITS)
    for row in range(N):
        h, c = oracle_step(core, x[0, row].numpy(), state[row, :UNITS].numpy(), state[row, UNITS:].numpy())
        np.testing.assert_allclose(out[row].detach(), h, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(after[row].detach(), np.concatenate([h, c]), rtol=1e-12, atol=1e-12)


def test_a_step_is_that_of_torchs_cell() -> None:
    core = random_core()
    x, state = random_inputs()
    cell = nn.LSTMCell(F, UNITS).double()
    cell.load_state_dict(
        {"weight_ih": core.weight_x, "weight_hh": core.weight_h, "bias_ih": core.bias, "bias_hh": core.no_bias}
    )
    h, c = cell(x[0], (state[:, :UNITS], state[:, UNITS:]))
    out, after = core.step(x[0], state)
    torch.testing.assert_close(out, h)
    torch.testing.assert_close(after, torch.cat([h, c], dim=-1))


@pytest.mark.formula(
    "minerva.networks.recurrent", r"h_{t-1}, c_{t-1} \leftarrow 0 \quad \text{where an episode starts at } t"
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["forward", "unrolled", "layer norm"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-13)])
def test_a_sequence_is_its_steps_one_by_one(kind: str, form: str, dtype: torch.dtype, tolerance: float) -> None:
    core = random_core(form == "layer norm", dtype)
    (x, state), starts = random_inputs(dtype), starts_of(kind)
    kept = starts.clone()
    found = core.unrolled(x, state, starts) if form == "unrolled" else core(x, state, starts)
    assert torch.equal(starts, kept)
    for part, expected in zip(found, one_by_one(core, x, state, starts), strict=True):
        assert part.shape == expected.shape and part.dtype == dtype
        torch.testing.assert_close(part, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["forward", "unrolled", "torch.func", "layer norm"])
def test_gradients_are_those_of_the_steps_one_by_one(kind: str, form: str) -> None:
    core = random_core(form == "layer norm")
    (x, state), starts = random_inputs(), starts_of(kind)
    x.requires_grad_(), state.requires_grad_()
    leaves = {**dict(core.named_parameters()), "x": x, "state": state}
    generator = torch.Generator().manual_seed(3)
    weights = torch.randn(T, N, UNITS, generator=generator), torch.randn(N, 2 * UNITS, generator=generator)

    def loss(results: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return sum(((weight * result).sum() for weight, result in zip(weights, results, strict=True)), torch.zeros(()))

    expected = torch.autograd.grad(loss(one_by_one(core, x, state, starts)), list(leaves.values()))
    if form == "torch.func":
        core.static = True

        def of_leaves(leaves: dict[str, torch.Tensor]) -> torch.Tensor:
            parameters = {name: leaf for name, leaf in leaves.items() if name not in ("x", "state")}
            return loss(functional_call(core, parameters, (leaves["x"], leaves["state"], starts)))

        found = list(grad(of_leaves)({name: leaf.detach() for name, leaf in leaves.items()}).values())
    else:
        results = core.unrolled(x, state, starts) if form == "unrolled" else core(x, state, starts)
        found = list(torch.autograd.grad(loss(results), list(leaves.values())))
    for name, x, y in zip(leaves, found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-11, msg=name)


def test_nothing_is_carried_into_an_episode_and_everything_within_it() -> None:
    core = random_core()
    (x, state), starts = random_inputs(), starts_of("none")
    starts[9, 0] = 1
    x.requires_grad_(), state.requires_grad_()
    out, after = core(x, state, starts)
    of_x, of_state = torch.autograd.grad(out[15, 0].sum() + after[0].sum(), (x, state))
    assert not of_x[:9].any() and not of_state.any() and not of_x[:, 1:].any()
    assert (of_x[9:16, 0] != 0).all()


def test_no_gradients_wanted_and_evaluation_mode() -> None:
    core = random_core()
    (x, state), starts = random_inputs(), starts_of("some")
    expected = core(x, state, starts)
    core.eval()
    out, _ = core(x, state, starts)
    out.sum().backward()
    assert core.weight_h.grad is not None and core.weight_h.grad.any()
    with torch.no_grad():
        for found, part in zip(core(x, state, starts), expected, strict=True):
            assert torch.equal(found, part) and not found.requires_grad


def test_first_weights_are_orthogonal_and_biases_zero() -> None:
    core = LSTMCore(3, 8)
    for weight in (core.weight_x, core.weight_h):
        gram = (weight.T @ weight).detach()
        torch.testing.assert_close(gram, torch.eye(len(gram)), rtol=1e-5, atol=1e-6)
    assert not core.bias.any() and core.out_dim == 8 and core.state_dim == 16
    assert set(core.state_dict()) == {"weight_x", "weight_h", "bias"}


@pytest.mark.formula("minerva.networks.numpy_mlp", r"\sigma(z) = \tfrac12 \tanh\left( \tfrac12 z \right) + \tfrac12")
@pytest.mark.formula("minerva.networks.numpy_mlp.NumpyLSTM.__call__", r"c_t = \sigma(f)\, c_{t-1} + \sigma(i) \tanh(g)")
@pytest.mark.formula("minerva.networks.numpy_mlp.NumpyLSTM.__call__", r"h_t = \sigma(o) \tanh(c_t)")
@pytest.mark.parametrize("layer_norm", [False, True])
def test_numpy_takes_the_same_steps(layer_norm: bool) -> None:
    core = random_core(layer_norm, torch.float32)
    fast = NumpyLSTM(core)
    x, state = random_inputs(torch.float32)
    state_array = state.numpy().copy()
    with torch.no_grad():
        for t in range(T):
            before = state_array.copy()
            out_array, after_array = fast(x[t].numpy(), state_array)
            assert (state_array == before).all() and out_array.dtype == after_array.dtype == np.float32
            out, state = core.step(x[t], state)
            np.testing.assert_allclose(out_array, out, rtol=1e-5, atol=2e-6)
            np.testing.assert_allclose(after_array, state, rtol=1e-5, atol=2e-6)
            state_array = after_array


def test_numpy_sees_what_is_written_later_and_nothing_overflows() -> None:
    core, other = LSTMCore(F, UNITS), random_core(dtype=torch.float32)
    fast = NumpyLSTM(core)
    core.load_state_dict(other.state_dict())
    x, state = (part * 1000 for part in (torch.ones(N, F), torch.zeros(N, 2 * UNITS)))
    with torch.no_grad():
        for found, expected in zip(fast(x.numpy(), state.numpy()), other.step(x, state), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
