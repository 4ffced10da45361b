"""The PPO2 interface of stable-baselines, and what scripts import with it, on top of Minerva's PPO.

Modules have stable-baselines' paths, so that a script runs when the name of the package in its imports is replaced.
What scripts import most is available here too.
"""

from typing import TYPE_CHECKING

from minerva.utils.lazy import lazy_imports

if TYPE_CHECKING:
    from minerva.compat.stable_baselines import bench as bench
    from minerva.compat.stable_baselines import common as common
    from minerva.compat.stable_baselines import gail as gail
    from minerva.compat.stable_baselines import logger as logger
    from minerva.compat.stable_baselines import ppo2 as ppo2
    from minerva.compat.stable_baselines import results_plotter as results_plotter
    from minerva.compat.stable_baselines.common.callbacks import BaseCallback as BaseCallback
    from minerva.compat.stable_baselines.common.callbacks import CallbackList as CallbackList
    from minerva.compat.stable_baselines.common.callbacks import CheckpointCallback as CheckpointCallback
    from minerva.compat.stable_baselines.common.callbacks import EvalCallback as EvalCallback
    from minerva.compat.stable_baselines.common.callbacks import EventCallback as EventCallback
    from minerva.compat.stable_baselines.common.callbacks import EveryNTimesteps as EveryNTimesteps
    from minerva.compat.stable_baselines.common.callbacks import (
        StopTrainingOnRewardThreshold as StopTrainingOnRewardThreshold,
    )
    from minerva.compat.stable_baselines.common.cmd_util import make_atari_env as make_atari_env
    from minerva.compat.stable_baselines.common.cmd_util import make_vec_env as make_vec_env
    from minerva.compat.stable_baselines.common.evaluation import evaluate_policy as evaluate_policy
    from minerva.compat.stable_baselines.common.policies import CnnLnLstmPolicy as CnnLnLstmPolicy
    from minerva.compat.stable_baselines.common.policies import CnnLstmPolicy as CnnLstmPolicy
    from minerva.compat.stable_baselines.common.policies import CnnPolicy as CnnPolicy
    from minerva.compat.stable_baselines.common.policies import MlpLnLstmPolicy as MlpLnLstmPolicy
    from minerva.compat.stable_baselines.common.policies import MlpLstmPolicy as MlpLstmPolicy
    from minerva.compat.stable_baselines.common.policies import MlpPolicy as MlpPolicy
    from minerva.compat.stable_baselines.common.vec_env import DummyVecEnv as DummyVecEnv
    from minerva.compat.stable_baselines.common.vec_env import SubprocVecEnv as SubprocVecEnv
    from minerva.compat.stable_baselines.common.vec_env import VecEnv as VecEnv
    from minerva.compat.stable_baselines.common.vec_env import VecEnvWrapper as VecEnvWrapper
    from minerva.compat.stable_baselines.common.vec_env import VecFrameStack as VecFrameStack
    from minerva.compat.stable_baselines.common.vec_env import VecNormalize as VecNormalize
    from minerva.compat.stable_baselines.common.vec_env import sync_envs_normalization as sync_envs_normalization
    from minerva.compat.stable_baselines.other_algorithms import A2C as A2C
    from minerva.compat.stable_baselines.other_algorithms import ACER as ACER
    from minerva.compat.stable_baselines.other_algorithms import ACKTR as ACKTR
    from minerva.compat.stable_baselines.other_algorithms import DDPG as DDPG
    from minerva.compat.stable_baselines.other_algorithms import DQN as DQN
    from minerva.compat.stable_baselines.other_algorithms import GAIL as GAIL
    from minerva.compat.stable_baselines.other_algorithms import HER as HER
    from minerva.compat.stable_baselines.other_algorithms import PPO1 as PPO1
    from minerva.compat.stable_baselines.other_algorithms import SAC as SAC
    from minerva.compat.stable_baselines.other_algorithms import TD3 as TD3
    from minerva.compat.stable_baselines.other_algorithms import TRPO as TRPO
    from minerva.compat.stable_baselines.ppo2 import PPO2 as PPO2

# Worker processes import parts of this package too, and start faster without torch.
__getattr__, __dir__, __all__ = lazy_imports(__name__, __file__)
