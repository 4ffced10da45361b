from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from minerva.compat.stable_baselines.common.vec_env import (
    AlreadySteppingError,
    CloudpickleWrapper,
    DummyVecEnv,
    NotSteppingError,
    VecEnv,
    VecEnvWrapper,
)
from tests.compat.stable_baselines.samples import cart_pole


class Adding(VecEnvWrapper):
    """The two methods that a wrapper must have."""

    def __init__(self, venv: VecEnv, number: float, **extra: Any) -> None:
        super().__init__(venv)
        self.number = number
        for name, value in extra.items():
            setattr(self, name, value)

    def reset(self) -> Any:
        return self.venv.reset() + self.number

    def step_wait(self) -> Any:
        observations, rewards, dones, infos = self.venv.step_wait()
        return observations + self.number, rewards, dones, infos


def test_a_wrapper_needs_two_methods() -> None:
    venv = DummyVecEnv([cart_pole] * 2)
    wrapped = Adding(venv, 100)
    assert wrapped.seed(1) == [1, 2]
    assert (wrapped.reset() > 90).all()
    assert (wrapped.step([0, 1])[0] > 90).all()
    assert (wrapped.num_envs, wrapped.unwrapped) == (2, venv)
    wrapped.set_attr("length", 0.7, indices=-1)
    assert wrapped.get_attr("length") == [0.5, 0.7]
    assert wrapped.env_method("has_wrapper_attr", "length", indices=0) == [True]
    with pytest.raises(TypeError, match="abstract"):
        VecEnvWrapper(venv)  # type: ignore[abstract]
    with pytest.raises(ValueError, match="venv: must be a VecEnv, such as DummyVecEnv"):
        Adding(cart_pole(), 1)  # type: ignore[arg-type]


def test_attributes_of_wrapped_environments_are_found() -> None:
    venv = DummyVecEnv([cart_pole])
    wrapped = Adding(Adding(venv, 1, inner="inside"), 2)
    assert wrapped.inner == "inside"
    assert wrapped.envs is venv.envs
    assert wrapped.number == 2
    with pytest.raises(AttributeError, match="nothing"):
        wrapped.nothing  # noqa: B018
    assert not hasattr(wrapped, "nothing")


def test_an_attribute_of_two_wrapped_environments_is_ambiguous() -> None:
    wrapped = Adding(Adding(Adding(DummyVecEnv([cart_pole]), 1, same=1), 2, same=2), 3)
    with pytest.raises(AttributeError, match=r"same: .*ambiguous"):
        wrapped.same  # noqa: B018


def test_methods_of_single_environments_may_be_all_there_is() -> None:
    """A vector environment whose `seed` and `render` are those of the base class."""

    class Two(VecEnv):
        def __init__(self) -> None:
            env: Any = cart_pole()
            super().__init__(2, env.observation_space, env.action_space)

        def reset(self) -> Any: ...

        def step_async(self, actions: Any) -> None: ...

        def step_wait(self) -> Any: ...

        def close(self) -> None: ...

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return []

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None: ...

        def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
            return [(method_name, *args, indices)]

    assert Two().seed(3) == [("seed", 3, 0), ("seed", 4, 1)]
    with pytest.warns(RuntimeWarning, match="Two cannot render"):
        Two().render()


def test_functions_are_pickled_by_value() -> None:
    number = np.random.default_rng().integers(100)
    wrapped = pickle.loads(pickle.dumps(CloudpickleWrapper(lambda: number)))
    assert wrapped.var() == number
    assert "step_wait" in str(AlreadySteppingError())
    assert "step_async" in str(NotSteppingError())
