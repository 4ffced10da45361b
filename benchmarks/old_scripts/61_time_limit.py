# The end of an episode, as a vectorized environment shows it.
import gym
import numpy as np

from stable_baselines.common.vec_env import DummyVecEnv

env = DummyVecEnv([lambda: gym.make('Pendulum-v0')] * 2)
obs = env.reset()
for step in range(1, 201):
    before = obs
    obs, rewards, dones, infos = env.step([[0.], [0.5]])
    assert dones.all() == (step == 200)
assert all(info['TimeLimit.truncated'] for info in infos)
for i in range(2):
    last = infos[i]['terminal_observation']
    assert last.shape == (3,) and not np.array_equal(last, obs[i])
    # the pendulum moved a little in the last step, and jumped at the reset
    assert np.abs(last - before[i]).max() < 2.1
obs, rewards, dones, infos = env.step([[0.], [0.]])
assert not dones.any() and 'terminal_observation' not in infos[0]

env = DummyVecEnv([lambda: gym.make('CartPole-v1')])
env.reset()
done = [False]
while not done[0]:
    obs, reward, done, info = env.step([0])
    assert reward.dtype == np.float32 and done.dtype == bool
# the pole fell: no time limit
assert not info[0].get('TimeLimit.truncated', False) and abs(info[0]['terminal_observation'][2]) > 0.2
assert abs(obs[0, 2]) < 0.05
