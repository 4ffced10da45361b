"""What one process alone exchanges; several are tested in `tests/trainers/test_shared_updates.py`."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from minerva.utils.ranks import ALONE, is_silent, join, launched, own_device


def test_one_process_exchanges_nothing() -> None:
    x = torch.ones(3)
    assert ALONE.total(x) is x and ALONE.whole(x) is x and ALONE.own(x) is x and ALONE.share(x) is x
    assert ALONE.gather(x) == [x] and ALONE.collect(x) == [x]
    assert (ALONE.rank, ALONE.count, ALONE.description) == (0, 1, "one process")


def test_a_process_that_torchrun_did_not_start_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")  # as a job scheduler may set it
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert not launched() and not is_silent()
    assert join(torch.device("cpu")) is ALONE
    assert own_device("auto") == "auto"


@pytest.mark.parametrize(
    ("local", "name", "device"),
    [("1", "auto", "cuda:1"), ("3", "cuda", "cuda:1"), ("3", "cuda:0", "cuda:0"), ("1", "cpu", "cpu")],
)
def test_each_process_takes_a_gpu_of_its_own_as_far_as_there_are_enough(
    local: str, name: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "4", "LOCAL_RANK": local}.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert own_device(name) == device
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert own_device(name) == name


@pytest.mark.parametrize(
    ("size", "rank", "several", "silent"),
    [("2", "0", True, False), ("2", "1", True, True), ("1", "0", False, False)],
)
def test_rank_0_talks_to_the_user(
    size: str, rank: str, several: bool, silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": size, "RANK": rank}.items():
        monkeypatch.setenv(name, value)
    assert (launched(), is_silent()) == (several, silent)


def test_the_module_is_a_program_and_help_does_not_import_torch() -> None:
    code = (
        "import runpy, sys; sys.argv = ['minerva', '--help']\ntry: runpy.run_module('minerva', run_name='__main__')\n"
    )
    code += "except SystemExit as end: assert not end.code\nassert 'torch' not in sys.modules"
    ended = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "minerva train" in ended.stdout
