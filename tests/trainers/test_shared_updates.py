"""Several processes that share a rollout learn what one process learns from the whole of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from minerva.utils.ranks import ALONE
from tests.trainers import shared_updates
from tests.trainers.pairs import COUNT, run_pair
from tests.trainers.shared_updates import CASES, learn


def test_two_ranks_learn_what_one_process_learns_from_the_whole_rollout(tmp_path: Path) -> None:
    run_pair(shared_updates, tmp_path)
    of_ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(COUNT)]
    for name, case in CASES.items():
        print(name)  # shown where this fails
        first, second = (found[name] for found in of_ranks)
        alone = learn(case, ALONE)
        tolerance = 1e-9 if case.dtype == torch.float64 else 1e-6
        for part in ("parameters", "moments"):
            for key, value in alone[part].items():
                assert torch.equal(first[part][key], second[part][key]), key  # the same bits
                torch.testing.assert_close(first[part][key], value, rtol=0, atol=tolerance)
        assert first["metrics"].keys() == second["metrics"].keys() == alone["metrics"].keys()
        for key, value in alone["metrics"].items():
            same = pytest.approx(value, rel=tolerance, abs=tolerance, nan_ok=True)
            assert first["metrics"][key] == same and second["metrics"][key] == same, key
