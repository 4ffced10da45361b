# Atari's wrappers one by one.
import gym
import numpy as np

from stable_baselines.common.atari_wrappers import (
    ClipRewardEnv, EpisodicLifeEnv, FireResetEnv, FrameStack, LazyFrames, MaxAndSkipEnv, NoopResetEnv, ScaledFloatFrame,
    WarpFrame, make_atari, wrap_deepmind)

env = gym.make('BreakoutNoFrameskip-v4')
assert env.reset().shape == (210, 160, 3)
assert env.unwrapped.get_action_meanings()[:2] == ['NOOP', 'FIRE']
env = NoopResetEnv(env, noop_max=5)
env = MaxAndSkipEnv(env, skip=4)
env = EpisodicLifeEnv(env)
env = FireResetEnv(env)
env = WarpFrame(env)
assert env.observation_space.shape == (84, 84, 1)
env = ClipRewardEnv(env)
env = FrameStack(env, 4)
assert env.observation_space.shape == (84, 84, 4)
env.seed(0)
obs = env.reset()
assert isinstance(obs, LazyFrames) and np.array(obs).shape == (84, 84, 4)
done, lives = False, env.unwrapped.ale.lives()
n = 0
while not done and n < 300:
    obs, reward, done, info = env.step(0)
    assert reward in (-1, 0, 1)
    n += 1
# a life lost is the end of an episode
assert done and env.unwrapped.ale.lives() == lives - 1

env = wrap_deepmind(make_atari('BreakoutNoFrameskip-v4'), episode_life=False, clip_rewards=False, frame_stack=True,
                    scale=True)
obs = np.array(env.reset())
assert obs.shape == (84, 84, 4) and obs.dtype == np.float32 and 0 < obs.max() <= 1
assert isinstance(env.env, ScaledFloatFrame)
try:
    make_atari('CartPole-v1')
except AssertionError:
    pass
else:
    raise AssertionError('CartPole is no Atari game')
