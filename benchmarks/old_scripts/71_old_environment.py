# An environment in the oldest manner: no base class's help, no seed in reset, done as NumPy's.
import gym
import numpy as np
from gym import error, logger, spaces, utils
from gym.utils import seeding

from stable_baselines import PPO2
from stable_baselines.common.vec_env import DummyVecEnv, VecNormalize

logger.set_level(logger.ERROR)
assert issubclass(error.ResetNeeded, error.Error)


class BanditEnv(gym.Env, utils.EzPickle):
    metadata = {'render.modes': ['human', 'ansi'], 'video.frames_per_second': 30}
    reward_range = (0, 1)

    def __init__(self, arms=3):
        utils.EzPickle.__init__(self, arms)
        self.arms = arms
        self.action_space = spaces.Discrete(arms)
        self.observation_space = spaces.Box(low=np.zeros(2), high=np.ones(2), dtype=np.float32)
        self.viewer = None
        self.seed()

    def seed(self, seed=None):
        self.np_random, seed = seeding.np_random(seed)
        return [seed]

    def reset(self):
        self.t = 0
        return self.np_random.uniform(size=2)

    def step(self, a):
        self.t += 1
        return self.np_random.uniform(size=2), np.float64(a == 1), np.bool_(self.t >= 9), {}

    def render(self, mode='human'):
        return 'arm' if mode == 'ansi' else None

    def close(self):
        self.viewer = None


def seeded(seed):
    env = BanditEnv(arms=4)
    env.seed(seed)
    return env


assert (seeded(3).reset() == seeded(3).reset()).all() and not (seeded(3).reset() == seeded(4).reset()).all()
with seeded(0) as env:
    assert env.render(mode='ansi') == 'arm' and env.unwrapped is env

env = DummyVecEnv([lambda: seeded(1), lambda: seeded(2)])
model = PPO2('MlpPolicy', VecNormalize(env), n_steps=32, learning_rate=3e-3, gamma=0.1, seed=0, verbose=0)
model.learn(2048)
p = model.action_probability(np.zeros((1, 2)))
assert p.argmax() == 1 and p.max() > 0.5, p


class Plain(object):
    """Not even a gym.Env."""

    observation_space = spaces.Box(low=-1, high=1, shape=(1,), dtype=np.float32)
    action_space = spaces.Box(low=-1, high=1, shape=(2,), dtype=np.float32)
    metadata = {}

    def reset(self):
        return [0.]

    def step(self, action):
        assert np.shape(action) == (2,) and np.abs(action).max() <= 1
        return [0.5], 1, np.random.rand() < 0.1, {}

    def render(self, mode='human'):
        pass

    def close(self):
        pass


model = PPO2('MlpPolicy', DummyVecEnv([Plain]), n_steps=32).learn(64)
assert model.get_env().reset().tolist() == [[0.]]
