"""A memory: one layer of LSTM cells over sequences that consist of episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from minerva.networks.numpy_mlp import Array, NumpyMLP


class LSTMCore(nn.Module):
    """LSTM cells (Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000).

    A state ``[n, S]`` is the cells' output and what is in the cells, side by side; an episode begins with zeros.
    Weights start orthogonal, biases at zero. The rows of weights and bias belong to the input gate, the forget gate,
    the candidate and the output gate, in this order.

    Args:
        in_dim: F, length of the input.
        units: How many cells.
        layer_norm: Whether the two projections and the cells' content are normalized (Ba et al. 2016).

    Attributes:
        out_dim: Length of the output.
        state_dim: S, length of a state.
        static: Whether `forward` is `unrolled`, as it must be within `torch.func` and `torch.compile`.
    """

    no_bias: Tensor

    def __init__(self, in_dim: int, units: int, layer_norm: bool = False) -> None:
        super().__init__()
        self.out_dim = units
        self.state_dim = 2 * units
        self.static = layer_norm  # torch's own LSTM has no layer norm
        self.weight_x = nn.Parameter(nn.init.orthogonal_(torch.empty(4 * units, in_dim)))
        self.weight_h = nn.Parameter(nn.init.orthogonal_(torch.empty(4 * units, units)))
        self.bias = nn.Parameter(torch.zeros(4 * units))
        self.register_buffer("no_bias", torch.zeros(4 * units), persistent=False)  # torch's LSTM wants two biases
        self.norm_x = nn.LayerNorm(4 * units) if layer_norm else nn.Identity()
        self.norm_h = nn.LayerNorm(4 * units) if layer_norm else nn.Identity()
        self.norm_c = nn.LayerNorm(units) if layer_norm else nn.Identity()

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Take one step of n sequences.

        Args:
            x: ``[n, F]``.
            state: The states before it, ``[n, S]``.

        Returns:
            Outputs ``[n, units]``, and the states after it, ``[n, S]``.
        """
        h, c = self._cells(self._projected(x), *state.chunk(2, dim=-1))
        return h, torch.cat([h, c], dim=-1)

    def forward(self, x: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Run over n sequences of T steps.

        Args:
            x: ``[T, n, F]``.
            state: The states before the first step, ``[n, S]``.
            starts: ``[T, n]``, 1 where an episode begins: the state is set to zero before that step. Else 0.

        Returns:
            Outputs ``[T, n, units]``, and the states after the last step, ``[n, S]``.
        """
        if self.static:
            return self.unrolled(x, state, starts)
        state = state * (1 - starts[0])[:, None]
        if starts[1:].any():
            return self._over_episodes(x, state, starts)
        h, c = state.chunk(2, dim=-1)
        out, h, c = self._fused(x, h, c, self.weight_x)
        return out, torch.cat([h, c], dim=-1)

    def unrolled(self, x: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Do what `forward` does, step by step: slower, and the same operations whatever `starts` holds."""
        projected = self._projected(x)  # [T, n, 4 units]
        keep = 1 - starts.unsqueeze(-1)  # [T, n, 1]
        h, c = state.chunk(2, dim=-1)
        outputs = []
        for t in range(len(x)):
            # LaTeX: h_{t-1}, c_{t-1} \leftarrow 0 \quad \text{where an episode starts at } t
            h, c = keep[t] * h, keep[t] * c
            h, c = self._cells(projected[t], h, c)
            outputs.append(h)
        return torch.stack(outputs), torch.cat([h, c], dim=-1)

    def _projected(self, x: Tensor) -> Tensor:
        # LaTeX: z^x_t = W_x x_t + b
        projected: Tensor = self.norm_x(x @ self.weight_x.T) + self.bias
        return projected

    def _cells(self, projected: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        # LaTeX: i, f, g, o = z^x_t + W_h h_{t-1}
        i, f, g, o = (projected + self.norm_h(h @ self.weight_h.T)).chunk(4, dim=-1)
        # LaTeX: c_t = \sigma(f)\, c_{t-1} + \sigma(i) \tanh(g)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        # LaTeX: h_t = \sigma(o) \tanh(c_t)
        h = o.sigmoid() * self.norm_c(c).tanh()
        return h, c

    def _fused(self, x: Tensor, h: Tensor, c: Tensor, weight_x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run over sequences without a break: outputs, and the two parts of the last state."""
        weights = [weight_x, self.weight_h, self.bias, self.no_bias]
        # The flags: biases, one layer, no dropout, training (else cuDNN has no backward pass), one way, time first.
        states = (h[None].contiguous(), c[None].contiguous())  # as cuDNN asks for them
        out, h, c = torch.lstm(x, states, weights, True, 1, 0.0, True, False, False)
        return out, h[0], c[0]

    def _over_episodes(self, x: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Run over whole sequences in one call, with a step put in before each episode that closes all gates.

        Where the gates' inputs are -∞ for all that matters, cells and output are 0 after it, exactly, and no gradient
        passes: the episode begins anew. Sequences with fewer episodes are filled up at their ends with steps that keep
        what is in the cells.
        """
        length, n = starts.shape
        begins = (starts > 0).long()
        begins[0] = 0  # the state has been seen to
        put_in = begins.cumsum(0)  # [T, n]: steps put in so far
        total = length + int(put_in[-1].max())
        steps, sequence = (torch.arange(count, device=x.device) for count in (total, n))
        place = ((steps[:length, None] + put_in) * n + sequence).flatten()  # [T n], of the steps in what is run over
        forgets = x.new_zeros(total * n).index_fill_(0, place[begins.flatten() > 0] - n, 1.0)
        keeps = (steps[:, None] >= length + put_in[-1]).to(x.dtype).flatten()
        rows = x.new_zeros(total * n, x.shape[-1]).index_copy(0, place, x.flatten(0, 1))
        rows = torch.cat([rows, forgets[:, None], keeps[:, None]], dim=1)
        closed, as_it_is = x.new_full((len(self.bias) // 4,), -_FAR), x.new_zeros(len(self.bias) // 4)
        forget, keep = (closed, closed, as_it_is, closed), (closed, -closed, as_it_is, as_it_is)
        columns = torch.stack([torch.cat(forget), torch.cat(keep)], dim=1)
        h, c = state.chunk(2, dim=-1)
        out, _, c = self._fused(rows.view(total, n, -1), h, c, torch.cat([self.weight_x, columns], dim=1))
        out = out.flatten(0, 1)[place].view(length, n, -1)
        return out, torch.cat([out[-1], c], dim=-1)


_FAR = 1e4
"""So far from 0 that a sigmoid is 0 or 1 in float32, and its slope 0, whatever is added to it."""


class NumpyLSTM:
    """Runs `LSTMCore.step` on NumPy, on views of the core's own weights: for acting in a few environments.

    The views share the core's memory, so they see what an optimizer or `load_state_dict` writes into it; the core must
    stay on the CPU. Results agree with the core's to float32 rounding.

    Args:
        core: The module, on the CPU.
    """

    def __init__(self, core: LSTMCore) -> None:
        units = core.out_dim
        self._units = units
        self._weight_x, self._weight_h = (w.detach().numpy().T for w in (core.weight_x, core.weight_h))
        self._bias = core.bias.detach().numpy()
        self._norm_x, self._norm_h, self._norm_c = (_norm(part) for part in (core.norm_x, core.norm_h, core.norm_c))
        # One call of tanh for all gates: sigmoid(z) = (tanh(z / 2) + 1) / 2, and nothing that could overflow.
        self._scale = np.full(4 * units, 0.5, dtype=np.float32)
        self._scale[2 * units : 3 * units] = 1  # the candidate is a tanh as it is
        self._shift = 1 - self._scale

    def __call__(self, x: Array, state: Array) -> tuple[Array, Array]:
        """Take one step: inputs ``[n, F]`` and states ``[n, S]`` to outputs ``[n, units]`` and states ``[n, S]``."""
        units = self._units
        gates = self._norm_x(x @ self._weight_x)
        gates += self._norm_h(state[:, :units] @ self._weight_h)
        gates += self._bias
        gates *= self._scale
        np.tanh(gates, out=gates)
        gates *= self._scale
        # LaTeX: \sigma(z) = \tfrac12 \tanh\left( \tfrac12 z \right) + \tfrac12
        gates += self._shift
        after = np.empty_like(state)
        h, c = after[:, :units], after[:, units:]
        np.multiply(gates[:, units : 2 * units], state[:, units:], out=c)
        # LaTeX: c_t = \sigma(f)\, c_{t-1} + \sigma(i) \tanh(g)
        c += gates[:, :units] * gates[:, 2 * units : 3 * units]
        # LaTeX: h_t = \sigma(o) \tanh(c_t)
        h[:] = gates[:, 3 * units :] * np.tanh(self._norm_c(c))
        return h, after


class NumpyMemory:
    """The memories of policy and critic, each behind its encoder, on NumPy; their states stand side by side.

    Args:
        encoders: The policy's first. One for both where they share theirs.
        memories: Likewise.
    """

    def __init__(self, encoders: Sequence[NumpyMLP], memories: Sequence[LSTMCore]) -> None:
        self._columns = list(zip(encoders, map(NumpyLSTM, memories), strict=True))
        self._size = 2 * memories[0].out_dim

    def __call__(self, obs: Array, state: Array, starts: Array) -> tuple[Array, Array]:
        """Take one step from observations ``[n, O]``; the critic does not act, but has to remember.

        Args:
            obs: ``[n, O]``.
            state: ``[n, S]``, left as it is.
            starts: ``[n]``, 1 where an episode begins: what was remembered is forgotten there.

        Returns:
            The policy's features, ``[n, units]``, and the states after.
        """
        if starts.any():
            state = state * (1 - starts)[:, None]
        new = np.empty_like(state)
        features = obs
        for i, (encoder, memory) in reversed(list(enumerate(self._columns))):
            where = slice(i * self._size, (i + 1) * self._size)
            features, new[:, where] = memory(encoder(obs), state[:, where])
        return features, new


def _norm(part: nn.Module) -> Callable[[Array], Array]:
    return NumpyMLP(nn.Sequential(part)) if isinstance(part, nn.LayerNorm) else lambda x: x
