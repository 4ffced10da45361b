# Smaller names of the vectorized environments.
import os
import pickle
import warnings

import gym
import numpy as np

from stable_baselines.common.vec_env import (
    AlreadySteppingError, CloudpickleWrapper, DummyVecEnv, NotSteppingError, VecEnv, VecEnvWrapper, VecFrameStack,
    VecNormalize, VecVideoRecorder)
from stable_baselines.common.vec_env.util import copy_obs_dict, dict_to_obs, obs_space_info

for error in (AlreadySteppingError, NotSteppingError):
    try:
        raise error()
    except Exception as raised:
        assert str(raised)

# functions that pickle does not take
number = 5
again = pickle.loads(pickle.dumps(CloudpickleWrapper(lambda x: x + number)))
assert again.var(1) == 6

# a step in two parts
env = DummyVecEnv([lambda: gym.make('Pendulum-v0')] * 2)
assert isinstance(env, VecEnv) and not isinstance(env, VecEnvWrapper)
env.seed(0)
env.reset()
env.step_async(np.array([[0.5], [-0.5]]))
obs, rewards, dones, infos = env.step_wait()
assert obs.shape == (2, 3) and env.actions.tolist() == [[0.5], [-0.5]]

# which wrapper has an attribute
wrapped = VecFrameStack(VecNormalize(env), 2)
assert wrapped.getattr_recursive('clip_obs') == 10.0
assert wrapped.getattr_depth_check('clip_obs', already_found=False) is None
assert 'VecNormalize' in VecNormalize(VecNormalize(env)).getattr_depth_check('clip_obs', already_found=False)

# dictionaries of observations
space = gym.spaces.Dict({'a': gym.spaces.Box(0, 1, (2,)), 'b': gym.spaces.Discrete(4)})
keys, shapes, dtypes = obs_space_info(space)
assert sorted(keys) == ['a', 'b'] and shapes['a'] == (2,) and dtypes['a'] == np.float32
buffers = {'a': np.zeros((1, 2)), 'b': np.zeros(1, dtype=int)}
copied = copy_obs_dict(buffers)
copied['a'][0, 0] = 1
assert buffers['a'][0, 0] == 0 and set(dict_to_obs(space, copied)) == {'a', 'b'}
assert dict_to_obs(gym.spaces.Discrete(4), {None: 3}) == 3

# the older way to keep the statistics of VecNormalize
normalized = VecNormalize(env)
normalized.reset()
for _ in range(10):
    normalized.step([env.action_space.sample() for _ in range(2)])
os.makedirs('statistics')
with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    normalized.save_running_average('statistics')
    other = VecNormalize(DummyVecEnv([lambda: gym.make('Pendulum-v0')]))
    other.load_running_average('statistics')
assert np.array_equal(other.obs_rms.mean, normalized.obs_rms.mean) and np.any(other.obs_rms.mean != 0)

# a video whose ends are said by hand
env = DummyVecEnv([lambda: gym.make('CartPole-v1')])
env.reset()
recorder = VecVideoRecorder(env, 'videos', record_video_trigger=lambda step: False, video_length=100, name_prefix='hand')
for _ in range(3):
    recorder.step([0])
assert os.listdir('videos') == []
recorder.start_video_recorder()
for _ in range(4):
    recorder.step([1])
recorder.close_video_recorder()
assert [name for name in os.listdir('videos') if name.endswith('.mp4')] == ['hand-step-3-to-step-103.mp4']
recorder.close()
