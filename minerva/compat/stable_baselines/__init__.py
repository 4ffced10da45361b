"""The PPO2 interface of stable-baselines, and what scripts import with it, on top of Minerva's PPO."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minerva.compat.stable_baselines.callbacks import (
        BaseCallback,
        CallbackList,
        CheckpointCallback,
        EvalCallback,
        EventCallback,
        EveryNTimesteps,
        StopTrainingOnRewardThreshold,
    )
    from minerva.compat.stable_baselines.evaluation import evaluate_policy
    from minerva.compat.stable_baselines.making import make_atari_env, make_vec_env
    from minerva.compat.stable_baselines.policies import (
        CnnLnLstmPolicy,
        CnnLstmPolicy,
        CnnPolicy,
        MlpLnLstmPolicy,
        MlpLstmPolicy,
        MlpPolicy,
    )
    from minerva.compat.stable_baselines.ppo2 import PPO2
    from minerva.compat.stable_baselines.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv
    from minerva.compat.stable_baselines.vec_env_wrapper import VecEnvWrapper
    from minerva.compat.stable_baselines.vec_frame_stack import VecFrameStack
    from minerva.compat.stable_baselines.vec_normalize import VecNormalize, sync_envs_normalization

_WHERE = {
    "BaseCallback": "callbacks",
    "CallbackList": "callbacks",
    "CheckpointCallback": "callbacks",
    "CnnLnLstmPolicy": "policies",
    "CnnLstmPolicy": "policies",
    "CnnPolicy": "policies",
    "DummyVecEnv": "vec_env",
    "EvalCallback": "callbacks",
    "EventCallback": "callbacks",
    "EveryNTimesteps": "callbacks",
    "MlpLnLstmPolicy": "policies",
    "MlpLstmPolicy": "policies",
    "MlpPolicy": "policies",
    "PPO2": "ppo2",
    "StopTrainingOnRewardThreshold": "callbacks",
    "SubprocVecEnv": "vec_env",
    "VecEnv": "vec_env",
    "VecEnvWrapper": "vec_env_wrapper",
    "VecFrameStack": "vec_frame_stack",
    "VecNormalize": "vec_normalize",
    "evaluate_policy": "evaluation",
    "make_atari_env": "making",
    "make_vec_env": "making",
    "sync_envs_normalization": "vec_normalize",
}

__all__ = [
    "PPO2",
    "BaseCallback",
    "CallbackList",
    "CheckpointCallback",
    "CnnLnLstmPolicy",
    "CnnLstmPolicy",
    "CnnPolicy",
    "DummyVecEnv",
    "EvalCallback",
    "EventCallback",
    "EveryNTimesteps",
    "MlpLnLstmPolicy",
    "MlpLstmPolicy",
    "MlpPolicy",
    "StopTrainingOnRewardThreshold",
    "SubprocVecEnv",
    "VecEnv",
    "VecEnvWrapper",
    "VecFrameStack",
    "VecNormalize",
    "evaluate_policy",
    "make_atari_env",
    "make_vec_env",
    "sync_envs_normalization",
]


def __getattr__(name: str) -> Any:
    # Lazy imports: worker processes also import this package, and start faster without torch.
    if name in _WHERE:
        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
