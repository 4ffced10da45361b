"""What scripts import from ``stable_baselines.common.vec_env``."""

from typing import TYPE_CHECKING

from minerva.utils.lazy import lazy_imports

if TYPE_CHECKING:
    from minerva.compat.stable_baselines.common.vec_env.base_vec_env import AlreadySteppingError as AlreadySteppingError
    from minerva.compat.stable_baselines.common.vec_env.base_vec_env import CloudpickleWrapper as CloudpickleWrapper
    from minerva.compat.stable_baselines.common.vec_env.base_vec_env import NotSteppingError as NotSteppingError
    from minerva.compat.stable_baselines.common.vec_env.base_vec_env import VecEnv as VecEnv
    from minerva.compat.stable_baselines.common.vec_env.base_vec_env import VecEnvWrapper as VecEnvWrapper
    from minerva.compat.stable_baselines.common.vec_env.dummy_vec_env import DummyVecEnv as DummyVecEnv
    from minerva.compat.stable_baselines.common.vec_env.subproc_vec_env import SubprocVecEnv as SubprocVecEnv
    from minerva.compat.stable_baselines.common.vec_env.vec_check_nan import VecCheckNan as VecCheckNan
    from minerva.compat.stable_baselines.common.vec_env.vec_frame_stack import VecFrameStack as VecFrameStack
    from minerva.compat.stable_baselines.common.vec_env.vec_normalize import VecNormalize as VecNormalize
    from minerva.compat.stable_baselines.common.vec_env.vec_normalize import (
        sync_envs_normalization as sync_envs_normalization,
    )
    from minerva.compat.stable_baselines.common.vec_env.vec_normalize import (
        unwrap_vec_normalize as unwrap_vec_normalize,
    )
    from minerva.compat.stable_baselines.common.vec_env.vec_video_recorder import VecVideoRecorder as VecVideoRecorder

__getattr__, __dir__, __all__ = lazy_imports(__name__, __file__)
