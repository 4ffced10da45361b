"""A sample of wrong, damaged and oversized checkpoints: each is refused with one sentence, and nothing is changed."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.bad_input import checkpoints
from minerva import checkpointing


def test_a_sample_is_refused() -> None:
    found = list(checkpoints.results(60, seed=3))
    assert len(found) >= 60
    assert [result for result in found if result.verdict != "refused"] == []


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("made")
    return folder, checkpoints.make_checkpoints(folder)


@pytest.mark.parametrize("algo", ["ppo", "mpo", "vmpo"])
def test_checkpoints_that_were_not_changed_are_accepted(made: tuple[Path, dict[str, Any]], algo: str) -> None:
    path = made[0] / algo / f"{algo}_last.pt"
    for load in ("minerva.load", "trainer.load"):
        assert checkpoints.attempt(algo, load, path, made[1][algo]).verdict == "accepted"


def test_a_refused_load_changes_nothing(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    trainer = made[1]["ppo"]
    tree = checkpointing.read(made[0] / "ppo" / "ppo_last.pt")
    tree["seed"], tree["run"]["env_steps"] = 99, 17
    for weight in tree["state"]["agent"].values():
        weight += 1
    tree["state"]["collector"]["env"]["generators"][1]["bit_generator"] = "MT19937"  # what is loaded last
    torch.save(tree, tmp_path / "ppo_last.pt")
    before = (trainer.state_dict(), trainer.run_state.to_plain(), trainer.seed, trainer.evaluator, list(trainer.notes))
    with pytest.raises(
        checkpointing.CheckpointError, match=r"state\.collector\.env\.generators\[1\]: must be the state"
    ):
        trainer.load(tmp_path / "ppo_last.pt")
    after = (trainer.state_dict(), trainer.run_state.to_plain(), trainer.seed, trainer.evaluator, list(trainer.notes))
    assert flat(before) == flat(after)


def test_the_generator_changes_all_kinds_of_parts(made: tuple[Path, dict[str, Any]]) -> None:
    tree = torch.load(made[0] / "mpo" / "mpo_last.pt", weights_only=True)
    kinds = Counter(type(part).__name__ for part in flat(tree))
    assert {"bytes", "int", "str", "float", "bool"} <= kinds.keys()
    assert len(list(checkpoints.places(tree))) > 150


def flat(tree: Any) -> list[Any]:
    """Return all parts of a tree, tensors as bytes."""
    if isinstance(tree, torch.Tensor):
        return [tree.numpy().tobytes()]
    if isinstance(tree, dict):
        return [part for key in tree for part in [key, *flat(tree[key])]]
    if isinstance(tree, (list, tuple)):
        return [part for item in tree for part in flat(item)]
    return [tree]
