from __future__ import annotations

import gc

import pytest

from minerva.acceleration.cuda_graph import no_garbage_collection


@pytest.mark.parametrize("before", [True, False])
def test_garbage_stays_where_it_is_meanwhile_and_not_longer(before: bool) -> None:
    found: list[bool] = []

    class Circle:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            found.append(True)

    enabled = gc.isenabled()
    try:
        (gc.enable if before else gc.disable)()
        with pytest.raises(KeyError), no_garbage_collection():
            Circle()
            assert len([[] for _ in range(200_000)]) == 200_000 and not found
            raise KeyError
        assert gc.isenabled() == before
        gc.collect()
        assert found
    finally:
        (gc.enable if enabled else gc.disable)()
