from __future__ import annotations

import torch
from torch import nn

from minerva.networks.lstm import LSTMCore
from minerva.networks.mlp import Hidden
from minerva.networks.trunk import Column, Trunk

T, N, OBS = 7, 3, 4


def sequences() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    starts = torch.zeros(T, N)
    starts[0, 0] = starts[3, 1] = starts[4, 1] = starts[6, 2] = 1
    return torch.randn(T, N, OBS), starts


def column(units: int | None) -> Column:
    return Column(Hidden(OBS, (6, 5)), None if units is None else LSTMCore(5, units), 5)


def test_hidden_layers_say_how_wide_they_end() -> None:
    hidden = Hidden(OBS, (6, 5))
    assert hidden.out_dim == 5 and hidden(torch.zeros(2, OBS)).shape == (2, 5)


def test_a_column_without_a_memory_encodes_and_hands_the_state_on() -> None:
    obs, starts = sequences()
    one = column(None)
    state = torch.zeros(N, 0)
    features, after = one(obs, state, starts)
    assert (one.out_dim, one.state_dim) == (5, 0) and after is state
    torch.testing.assert_close(features, one.encoder(obs))
    torch.testing.assert_close(one.step(obs[2], state)[0], one.encoder(obs[2]))


def test_an_encoder_sees_one_batch_dimension() -> None:
    shapes = []

    class Watching(nn.Module):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            shapes.append(tuple(rows.shape))
            return rows[:, :2]

    one = Column(Watching(), None, 2)
    obs, starts = sequences()
    torch.testing.assert_close(one(obs, torch.zeros(N, 0), starts)[0], obs[..., :2])
    assert shapes == [(T * N, OBS)]


def test_one_memory_for_both_and_one_each() -> None:
    obs, starts = sequences()
    for trunk in (Trunk(column(3)), Trunk(column(3), column(4))):
        assert trunk.recurrent and trunk.state_dim == (6 if trunk.value is None else 14)
        state = first = torch.randn(N, trunk.state_dim)
        whole = trunk(obs, first, starts)
        for t in range(T):
            state = state * (1 - starts[t]).unsqueeze(-1)
            for_policy, for_value, state = trunk.step(obs[t], state)
            torch.testing.assert_close(whole[0][t], for_policy, rtol=0, atol=1e-6)
            torch.testing.assert_close(whole[1][t], for_value, rtol=0, atol=1e-6)
        torch.testing.assert_close(whole[2], state, rtol=0, atol=1e-6)
        assert (whole[0] is whole[1]) == (trunk.value is None)
    # Each keeps to its own part of the state.
    assert trunk.value is not None
    own, _ = trunk.policy(obs, first[:, :6], starts)
    other, _ = trunk.value(obs, first[:, 6:], starts)
    torch.testing.assert_close(whole[0], own)
    torch.testing.assert_close(whole[1], other)


def test_without_a_memory_there_is_no_state() -> None:
    assert not Trunk(column(None), column(None)).recurrent
