"""`VecCheckNan`: tell where a number that is not finite comes from."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from minerva.compat.stable_baselines.common.vec_env.base_vec_env import VecEnv, VecEnvStepReturn, VecEnvWrapper


class VecCheckNan(VecEnvWrapper):
    """Check actions, observations and rewards for NaN and infinity.

    Args:
        venv: The vector environment to wrap.
        raise_exception: Whether to raise a ValueError instead of a warning.
        warn_once: Whether to warn only once.
        check_inf: Whether to check for infinity too.
    """

    handles_terminal_observation = True

    def __init__(
        self, venv: VecEnv, raise_exception: bool = False, warn_once: bool = True, check_inf: bool = True
    ) -> None:
        super().__init__(venv)
        self.raise_exception = raise_exception
        self.warn_once = warn_once
        self.check_inf = check_inf
        self._actions: Any = None
        self._observations: Any = None
        self._user_warned = False

    def step_async(self, actions: Any) -> None:
        """Check the actions and start a step with them."""
        self._check(f"the model, after the observations {self._observations}", actions=actions)
        self._actions = actions
        self.venv.step_async(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """Finish the step and check what it returned."""
        observations, rewards, dones, infos = self.venv.step_wait()
        self._check(f"the environment, after the actions {self._actions}", observations=observations, rewards=rewards)
        self._observations = observations
        return observations, rewards, dones, infos

    def reset(self) -> Any:
        """Reset every environment and check the first observations."""
        observations = self.venv.reset()
        self._actions = None
        self._check("the environment, at its reset", observations=observations)
        self._observations = observations
        return observations

    def _check(self, source: str, **values: Any) -> None:
        if self._user_warned and self.warn_once and not self.raise_exception:
            return
        tests = (("nan", np.isnan), ("inf", np.isinf)) if self.check_inf else (("nan", np.isnan),)
        found = [f"{kind} in {name}" for name, value in values.items() for kind, test in tests if np.any(test(value))]
        if not found:
            return
        self._user_warned = True
        message = f"found {', '.join(found)}. It comes from {source}"
        if self.raise_exception:
            raise ValueError(message)
        warnings.warn(message, UserWarning, stacklevel=3)
