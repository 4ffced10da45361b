from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import minerva
from minerva.callbacks import Callback
from minerva.utils.precision import exact_cudnn
from tests.trainers.ppo.small_run import small_trainer, trained

CUDNN: Any = torch.backends.cudnn
KINDS = (CUDNN.conv, CUDNN.rnn)
GPU = torch.device("cuda")  # cuDNN can be set up without one


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = settings()
    yield
    for kind, setting in zip(KINDS, before, strict=True):
        kind.fp32_precision = setting


def settings() -> list[str]:
    return [kind.fp32_precision for kind in KINDS]


@pytest.mark.parametrize("own", [["tf32", "tf32"], ["ieee", "ieee"], ["tf32", "ieee"], ["ieee", "tf32"]])
def test_products_are_not_rounded_within_it_and_the_users_setting_comes_back(own: list[str]) -> None:
    for kind, setting in zip(KINDS, own, strict=True):
        kind.fp32_precision = setting
    with exact_cudnn(torch.device("cpu")):
        assert settings() == own
    with pytest.raises(KeyError), exact_cudnn(GPU):
        assert "tf32" not in settings()
        with exact_cudnn(GPU):
            assert "tf32" not in settings()
        assert "tf32" not in settings()
        raise KeyError
    assert settings() == own


def test_a_choice_for_all_operations_does_not_come_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends, "fp32_precision", "tf32")
    with exact_cudnn(GPU):
        assert settings() == ["ieee", "ieee"]


def test_torchs_own_context_works_within_it() -> None:
    with exact_cudnn(GPU), CUDNN.flags(enabled=False):  # for second derivatives of an LSTM, say
        assert not CUDNN.enabled


@pytest.mark.parametrize("own", [True, False])
def test_sums_have_a_fixed_order_within_it(own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CUDNN, "deterministic", own)
    with exact_cudnn(torch.device("cpu")):
        assert CUDNN.deterministic is own
    with pytest.raises(KeyError), exact_cudnn(GPU):
        with exact_cudnn(GPU):
            assert CUDNN.deterministic is True
        assert CUDNN.deterministic is True
        raise KeyError
    assert CUDNN.deterministic is own


def test_what_used_the_older_setting_may_read_it_afterwards() -> None:
    for setting in (True, False):
        CUDNN.allow_tf32 = setting
        with exact_cudnn(GPU):
            pass
        assert CUDNN.allow_tf32 is setting
    CUDNN.allow_tf32 = True


def test_training_evaluation_and_a_loaded_policy_compute_in_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in KINDS:
        kind.fp32_precision = "tf32"
    seen: dict[str, list[str]] = {}

    class Look(Callback):
        def on_step(self, trainer: Any) -> None:
            seen["collecting"] = settings()

        def on_rollout_end(self, trainer: Any) -> None:
            seen["updating"] = settings()

    trainer = small_trainer(eval_episodes=1)
    monkeypatch.setattr(trainer, "device", GPU)  # what it asks, while its networks stay on the CPU
    act = type(trainer.agent).act_recurrent

    def looking(self: Any, *arguments: Any) -> Any:
        seen["acting"] = settings()
        return act(self, *arguments)

    monkeypatch.setattr(type(trainer.agent), "act_recurrent", looking)
    trainer.evaluate()
    assert "tf32" not in seen.pop("acting") and settings() == ["tf32", "tf32"]
    trained(trainer, 32, tmp_path / "run", Look())
    assert settings() == ["tf32", "tf32"]
    assert seen.keys() == {"collecting", "updating", "acting"} and all("tf32" not in kinds for kinds in seen.values())
    seen.clear()
    policy = minerva.load(tmp_path / "run")
    policy.act(np.zeros(3, np.float32))
    assert seen == {"acting": ["tf32", "tf32"]}  # on a CPU there is nothing to change
    monkeypatch.setattr(policy, "_device", GPU)
    policy.act(np.zeros(3, np.float32))
    assert "tf32" not in seen["acting"] and settings() == ["tf32", "tf32"]
