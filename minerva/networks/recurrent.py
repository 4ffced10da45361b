"""A recurrent core: one layer of LSTM cells over sequences that consist of episodes."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LSTMCore(nn.Module):
    """LSTM cells (Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000).

    A recurrent state ``[n, S]`` is the hidden state and the cell state, side by side; an episode begins with zeros.
    Weights start orthogonal, biases at zero. The rows of weights and bias belong to the input gate, the forget gate,
    the candidate and the output gate, in this order.

    Args:
        in_dim: F, length of the input.
        units: Number of cells.
        layer_norm: Whether the two projections and the cell state are normalized (Ba et al. 2016).

    Attributes:
        out_dim: Length of the output.
        state_dim: S, length of a state.
        static: Whether `forward` is `unrolled`: torch's own LSTM has no layer norm.
    """

    no_bias: Tensor

    def __init__(self, in_dim: int, units: int, layer_norm: bool = False) -> None:
        super().__init__()
        self.out_dim = units
        self.state_dim = 2 * units
        self.static = layer_norm
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

    def forward(self, x: Tensor, state: Tensor, episode_starts: Tensor) -> tuple[Tensor, Tensor]:
        """Run over n sequences of T steps.

        Args:
            x: ``[T, n, F]``.
            state: The states before the first step, ``[n, S]``.
            episode_starts: ``[T, n]``, 1 where an episode begins: the state is set to zero before that step. Else 0.

        Returns:
            Outputs ``[T, n, units]``, and the states after the last step, ``[n, S]``.
        """
        if self.static:
            return self.unrolled(x, state, episode_starts)
        state = state * (1 - episode_starts[0])[:, None]
        if episode_starts[1:].any():
            return self._over_episodes(x, state, episode_starts)
        h, c = state.chunk(2, dim=-1)
        out, h, c = self._fused(x, h, c, self.weight_x)
        return out, torch.cat([h, c], dim=-1)

    def unrolled(self, x: Tensor, state: Tensor, episode_starts: Tensor) -> tuple[Tensor, Tensor]:
        """Run over the sequences step by step: slower than `forward`, but always the same operations."""
        projected = self._projected(x)  # [T, n, 4 units]
        keep = 1 - episode_starts.unsqueeze(-1)  # [T, n, 1]
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
        """Run over sequences of one episode each; return the outputs and the two parts of the last state."""
        weights = [weight_x, self.weight_h, self.bias, self.no_bias]
        if x.is_cuda:  # cuDNN wants them in one piece of memory, in this order; else it warns and copies at every call
            sizes, shapes = [weight.numel() for weight in weights], [weight.shape for weight in weights]
            pieces = torch.cat([weight.reshape(-1) for weight in weights]).split_with_sizes(sizes)
            weights = [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
        # The flags: biases, one layer, no dropout, training (else cuDNN has no backward pass), one way, time first.
        states = (h[None].contiguous(), c[None].contiguous())  # as cuDNN asks for them
        out, h, c = torch.lstm(x, states, weights, True, 1, 0.0, True, False, False)
        return out, h[0], c[0]

    def _over_episodes(self, x: Tensor, state: Tensor, episode_starts: Tensor) -> tuple[Tensor, Tensor]:
        """Run over whole sequences in one call, with an extra step before each episode that closes all gates.

        Its gate inputs are so far below 0 that hidden state and cell state are exactly 0 after it, and that no gradient
        passes. Sequences with fewer episodes are padded at their ends with steps that keep the cell state.
        """
        length, n = episode_starts.shape
        begins = (episode_starts > 0).long()
        begins[0] = 0  # `forward` has reset the first state
        inserted = begins.cumsum(0)  # [T, n]: extra steps so far
        total = length + int(inserted[-1].max())
        steps, sequence = (torch.arange(count, device=x.device) for count in (total, n))
        place = ((steps[:length, None] + inserted) * n + sequence).flatten()  # [T n], where each step stands
        resets = x.new_zeros(total * n).index_fill_(0, place[begins.flatten() > 0] - n, 1.0)
        keeps = (steps[:, None] >= length + inserted[-1]).to(x.dtype).flatten()
        rows = x.new_zeros(total * n, x.shape[-1]).index_copy(0, place, x.flatten(0, 1))
        rows = torch.cat([rows, resets[:, None], keeps[:, None]], dim=1)
        closed, unchanged = x.new_full((len(self.bias) // 4,), -GATE_LIMIT), x.new_zeros(len(self.bias) // 4)
        forget, keep = (closed, closed, unchanged, closed), (closed, -closed, unchanged, unchanged)
        columns = torch.stack([torch.cat(forget), torch.cat(keep)], dim=1)
        h, c = state.chunk(2, dim=-1)
        out, _, c = self._fused(rows.view(total, n, -1), h, c, torch.cat([self.weight_x, columns], dim=1))
        out = out.flatten(0, 1)[place].view(length, n, -1)
        return out, torch.cat([out[-1], c], dim=-1)


GATE_LIMIT = 1e4
"""A gate input at which a sigmoid is exactly 0 or 1 in float32 with slope 0, whatever is added to it."""
