# An environment of one's own: check it, train in it, test the agent.
import gym
import numpy as np
from gym import spaces

from stable_baselines import PPO2
from stable_baselines.common.cmd_util import make_vec_env
from stable_baselines.common.env_checker import check_env


class GoLeftEnv(gym.Env):
    """A one-dimensional grid in which the agent must go left."""

    metadata = {'render.modes': ['console']}
    LEFT = 0
    RIGHT = 1

    def __init__(self, grid_size=10):
        super(GoLeftEnv, self).__init__()
        self.grid_size = grid_size
        self.agent_pos = grid_size - 1
        self.action_space = spaces.Discrete(2)
        self.observation_space = spaces.Box(low=0, high=self.grid_size, shape=(1,), dtype=np.float32)

    def reset(self):
        self.agent_pos = self.grid_size - 1
        return np.array([self.agent_pos]).astype(np.float32)

    def step(self, action):
        if action == self.LEFT:
            self.agent_pos -= 1
        elif action == self.RIGHT:
            self.agent_pos += 1
        else:
            raise ValueError("Received invalid action={} which is not part of the action space".format(action))
        self.agent_pos = np.clip(self.agent_pos, 0, self.grid_size)
        done = bool(self.agent_pos == 0)
        reward = 1 if self.agent_pos == 0 else 0
        return np.array([self.agent_pos]).astype(np.float32), reward, done, {}

    def render(self, mode='console'):
        if mode != 'console':
            raise NotImplementedError()
        print("." * self.agent_pos, end="")
        print("x", end="")
        print("." * (self.grid_size - self.agent_pos))

    def close(self):
        pass


env = GoLeftEnv(grid_size=10)
check_env(env, warn=True)

obs = env.reset()
env.render()
for step in range(20):
    obs, reward, done, info = env.step(GoLeftEnv.LEFT)
    if done:
        break
assert step == 8 and reward == 1

env = make_vec_env(GoLeftEnv, n_envs=1, seed=0)
model = PPO2('MlpPolicy', env, verbose=1, n_steps=64, learning_rate=3e-3, seed=0).learn(2048)

obs = env.reset()
n_steps = 30
for step in range(n_steps):
    action, _ = model.predict(obs, deterministic=True)
    obs, reward, done, info = env.step(action)
    env.render(mode='console')
    if done:
        # the environment is already at its next start
        assert reward == 1 and obs[0, 0] == 9
        assert info[0]['terminal_observation'][0] == 0
        print("Goal reached!", "reward=", reward)
        break
assert done and step == 8
