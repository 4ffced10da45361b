from __future__ import annotations

import pytest
from torch import nn

from minerva.utils.modes import mode, training_parts


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
