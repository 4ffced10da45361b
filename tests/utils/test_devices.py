from __future__ import annotations

from typing import Any

import pytest
import torch

from minerva.utils.devices import resolve_device


@pytest.mark.parametrize("name", ["meta", "mps", "xpu", "cpu:1", "cuda:99999999999999999999", "cuda:-1", "", None, 0])
def test_devices_that_are_not_supported(name: Any) -> None:
    with pytest.raises(ValueError, match=f"^device: '{name}' is not available here; use auto or cpu"):
        resolve_device(name)


def test_devices_that_are() -> None:
    assert resolve_device("cpu") == resolve_device(torch.device("cpu")) == torch.device("cpu")  # type: ignore[arg-type]
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
