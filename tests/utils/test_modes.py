from __future__ import annotations

import pytest
import torch
from torch import nn

from minerva.utils.modes import changes_buffers, is_pure, mode, restore_unless, training_parts


def test_each_part_goes_back_into_its_own_mode() -> None:
    module = nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.Dropout(), nn.BatchNorm1d(1)), nn.Dropout())
    module[1][1].eval()  # type: ignore[index]
    module[2].eval()
    before = [part.training for part in module.modules()]
    assert before == [True, True, True, True, False, False]
    with pytest.raises(KeyError), mode(module.modules(), training=False):
        assert not any(part.training for part in module.modules())
        raise KeyError
    assert [part.training for part in module.modules()] == before
    parts = training_parts(module)
    module.eval()
    with mode(parts, training=True):  # what was frozen stays so
        assert [part.training for part in module.modules()] == before
    assert not any(part.training for part in module.modules())


@pytest.mark.parametrize(
    ("layer", "pure"),
    [
        (nn.Tanh(), True),
        (nn.Dropout(), False),
        (nn.Sequential(nn.Dropout().eval(), nn.BatchNorm1d(3).eval()), True),
        (nn.BatchNorm1d(3), False),
        (nn.BatchNorm1d(3, track_running_stats=False), True),
        (nn.RReLU(), False),
    ],
)
def test_a_layer_that_draws_or_remembers_is_found_and_left_as_it_was(layer: nn.Module, pure: bool) -> None:
    state, before = torch.get_rng_state(), [buffer.clone() for buffer in layer.buffers()]
    rows = torch.linspace(-1, 1, 6).view(2, 3)
    assert is_pure(layer, rows) is pure
    assert changes_buffers(layer, rows) is (isinstance(layer, nn.BatchNorm1d) and not pure)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(buffer, old) for buffer, old in zip(layer.buffers(), before, strict=True))


def test_buffers_are_restored_unless_a_step_was_applied() -> None:
    for applied in (True, False):
        buffers, before = [torch.ones(2), torch.tensor(7)], [torch.full((2,), torch.nan), torch.tensor(6)]
        restore_unless(torch.tensor(applied), buffers, before)
        assert buffers[1] == (7 if applied else 6) and bool(buffers[0].isnan().all()) is not applied
