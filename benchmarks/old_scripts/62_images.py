# Pictures and the convolutional policy.
import gym
import numpy as np

from stable_baselines import PPO2
from stable_baselines.common.cmd_util import make_vec_env
from stable_baselines.common.env_checker import check_env
from stable_baselines.common.vec_env import VecFrameStack


class Screen(gym.Env):
    """A bright line moves; the agent says whether it is in the upper half."""

    metadata = {'render.modes': ['rgb_array']}

    def __init__(self):
        self.observation_space = gym.spaces.Box(low=0, high=255, shape=(40, 36, 3), dtype=np.uint8)
        self.action_space = gym.spaces.Discrete(2)

    def _picture(self):
        picture = np.zeros((40, 36, 3), dtype=np.uint8)
        picture[self.row] = 255
        return picture

    def reset(self):
        self.row, self.steps = 0, 0
        return self._picture()

    def step(self, action):
        reward = float(action == (self.row < 20))
        self.row = (self.row + 7) % 40
        self.steps += 1
        return self._picture(), reward, self.steps == 10, {}

    def render(self, mode='rgb_array'):
        return self._picture()


check_env(Screen(), skip_render_check=False)
model = PPO2('CnnPolicy', make_vec_env(Screen, n_envs=2), n_steps=8, nminibatches=2, noptepochs=2)
model.learn(32)
shapes = {name: value.shape for name, value in model.get_parameters().items()}
assert shapes['model/c1/w:0'] == (8, 8, 3, 32) and shapes['model/c1/b:0'] == (1, 32, 1, 1)
assert shapes['model/c2/w:0'] == (4, 4, 32, 64) and shapes['model/c3/w:0'] == (3, 3, 64, 64)
assert shapes['model/fc1/w:0'][1] == 512 and shapes['model/pi/w:0'] == (512, 2) and shapes['model/vf/w:0'] == (512, 1)

obs = model.get_env().reset()
expected = model.action_probability(obs)
model.save('cnn')
assert np.allclose(PPO2.load('cnn').action_probability(obs), expected)

stacked = VecFrameStack(make_vec_env(Screen, n_envs=2), n_stack=2)
assert stacked.reset().shape == (2, 40, 36, 6)
model = PPO2('CnnPolicy', stacked, n_steps=8, nminibatches=2, noptepochs=1).learn(16)
assert model.get_parameters()['model/c1/w:0'].shape == (8, 8, 6, 32)
