# An environment with a goal, whose observations are a dictionary; flattened for PPO2.
import gym
import numpy as np

from stable_baselines import PPO2
from stable_baselines.common.cmd_util import make_vec_env
from stable_baselines.common.vec_env import DummyVecEnv


class Reach(gym.GoalEnv):
    """Move to a number."""

    def __init__(self):
        box = gym.spaces.Box(-3., 3., shape=(1,), dtype=np.float32)
        self.observation_space = gym.spaces.Dict(dict(observation=box, achieved_goal=box, desired_goal=box))
        self.action_space = gym.spaces.Discrete(3)

    def _see(self):
        here = np.array([self.place], dtype=np.float32)
        return dict(observation=here, achieved_goal=here.copy(), desired_goal=np.array([self.goal], dtype=np.float32))

    def reset(self):
        super(Reach, self).reset()
        self.place, self.steps = 0., 0
        self.goal = 2. if np.random.rand() < 0.5 else -2.
        return self._see()

    def compute_reward(self, achieved_goal, desired_goal, info):
        return -float(np.abs(achieved_goal - desired_goal).sum())

    def step(self, action):
        self.place = float(np.clip(self.place + int(action) - 1, -3, 3))
        self.steps += 1
        obs = self._see()
        reward = self.compute_reward(obs['achieved_goal'], obs['desired_goal'], {})
        return obs, reward, self.steps == 6, {'is_success': reward == 0}


np.random.seed(0)
env = gym.Wrapper(Reach())
assert env.compute_reward(np.array([1.]), np.array([3.]), {}) == -2

wrong = Reach()
wrong.observation_space = gym.spaces.Discrete(3)
try:
    wrong.reset()
except gym.error.Error as error:
    assert 'observation' in str(error)
else:
    raise AssertionError('a goal environment without goals')

flat = gym.wrappers.FlattenObservation(Reach())
assert flat.observation_space.shape == (3,) and flat.reset().shape == (3,)
model = PPO2('MlpPolicy', make_vec_env(lambda: gym.wrappers.FlattenObservation(Reach()), n_envs=8), n_steps=24,
             learning_rate=3e-3, gamma=0.9, seed=0)
model.learn(6144)
# it goes to where the goal is
env, successes = DummyVecEnv([lambda: gym.wrappers.FlattenObservation(Reach())]), []
obs = env.reset()
while len(successes) < 10:
    obs, reward, done, info = env.step(model.predict(obs, deterministic=True)[0])
    if done[0]:
        successes.append(info[0]['is_success'])
assert np.mean(successes) >= 0.9, successes
