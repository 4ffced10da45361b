from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minerva.compat.stable_baselines.common.vec_env import DummyVecEnv, VecCheckNan
from tests.environments.tiny_envs import Noisy


class Broken(Noisy):
    """Its observations are what the action says."""

    def step(self, action: Any) -> Any:
        _, reward, _, _, info = super().step(np.zeros(1, np.float32))
        return np.array([action[0], 0], np.float32), reward, False, False, info


class Numb(Broken):
    """NaN in its rewards."""

    def step(self, action: Any) -> Any:
        return super().step(action)[0], np.nan, False, False, {}


def act(venv: VecCheckNan, number: float) -> Any:
    return venv.step(np.full((1, 1), number, np.float32))


@pytest.mark.parametrize(("number", "kind"), [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "inf")])
def test_it_is_said_where_a_number_comes_from(number: float, kind: str) -> None:
    venv = VecCheckNan(DummyVecEnv([Broken]), raise_exception=True)
    venv.reset()
    act(venv, 1.5)
    with pytest.raises(ValueError, match=rf"found {kind} in actions\. It comes from the model.*1\.5"):
        act(venv, number)
    venv = VecCheckNan(DummyVecEnv([Numb]), raise_exception=True)
    venv.reset()
    with pytest.raises(ValueError, match=r"found nan in rewards\. It comes from the environment, .*0\.5"):
        act(venv, 0.5)


def test_warnings_come_once_or_always() -> None:
    once, always = (VecCheckNan(DummyVecEnv([Broken]), warn_once=warn_once) for warn_once in (True, False))
    for venv, count in ((once, 1), (always, 4)):
        venv.reset()
        with pytest.warns(UserWarning, match="found nan") as caught:
            act(venv, np.nan)
            act(venv, np.nan)
        assert len(caught) == count


def test_infinity_may_be_allowed() -> None:
    venv = VecCheckNan(DummyVecEnv([Broken]), raise_exception=True, check_inf=False)
    venv.reset()
    assert np.isinf(act(venv, np.inf)[0][0, 0])
