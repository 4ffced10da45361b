# The monitor: its file, its methods, its rules.
import json

import gym
import numpy as np

from stable_baselines.bench import Monitor, load_results


class Dial(gym.Env):
    observation_space = gym.spaces.Box(0, 1, shape=(1,), dtype=np.float32)
    action_space = gym.spaces.Discrete(3)

    def reset(self, level=0):
        self.level, self.steps = level, 0
        return np.zeros(1, dtype=np.float32)

    def step(self, action):
        self.steps += 1
        return np.zeros(1, dtype=np.float32), float(action), self.steps == 3, {'is_success': action == 2}


env = gym.make('CartPole-v1')
env.seed(0)
env = Monitor(env, 'cartpole')
lengths = []
for _ in range(3):
    env.reset()
    done, n = False, 0
    while not done:
        obs, reward, done, info = env.step(env.action_space.sample())
        n += 1
    lengths.append(n)
    assert info['episode']['r'] == info['episode']['l'] == n and info['episode']['t'] > 0
assert env.get_total_steps() == sum(lengths) and env.get_episode_lengths() == lengths
assert env.get_episode_rewards() == [float(n) for n in lengths] and len(env.get_episode_times()) == 3
env.close()
with open('cartpole.monitor.csv') as file:
    head = file.readline()
    assert head.startswith('#') and json.loads(head[1:])['env_id'] == 'CartPole-v1'
    assert set(json.loads(head[1:])) == {'env_id', 't_start'}
    assert file.readline().strip() == 'r,l,t'
    assert len(file.readlines()) == 3
assert load_results('.').l.values.tolist() == lengths

# more columns
env = Monitor(Dial(), 'dial.monitor.csv', reset_keywords=('level',), info_keywords=('is_success',))
env.reset(level=7)
for action in (0, 1, 2):
    obs, reward, done, info = env.step(action)
assert done and info['episode']['r'] == 3 and info['episode']['is_success'] and info['episode']['level'] == 7
try:
    env.step(0)
except RuntimeError:
    pass
else:
    raise AssertionError('a step after the end')
try:
    env.reset()
except ValueError as error:
    assert 'level' in str(error)
else:
    raise AssertionError('reset without its keyword')
with open('dial.monitor.csv') as file:
    assert file.readlines()[1].strip() == 'r,l,t,level,is_success'
env.close()

env = Monitor(Dial(), None, allow_early_resets=False)
env.reset()
env.step(0)
try:
    env.reset()
except RuntimeError:
    pass
else:
    raise AssertionError('an early reset')
