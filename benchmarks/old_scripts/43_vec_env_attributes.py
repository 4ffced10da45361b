# Attributes and methods of the environments inside.
import gym
import numpy as np

from stable_baselines.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize


class Plain(gym.Env):
    def __init__(self):
        self.action_space = gym.spaces.Box(low=np.zeros(2, dtype=np.float32), high=np.ones(2, dtype=np.float32))
        self.observation_space = self.action_space
        self.current_step = 0

    def reset(self):
        self.current_step = 0
        return self.observation_space.sample()

    def step(self, action):
        self.current_step += 1
        return self.observation_space.sample(), 1, self.current_step >= 4, {}

    def render(self, mode='human'):
        if mode == 'rgb_array':
            return np.zeros((4, 4, 3))

    def seed(self, seed=None):
        return [seed]

    @staticmethod
    def custom_method(dim_0=1, dim_1=1):
        return np.ones((dim_0, dim_1))


for wrap in (None, VecNormalize, lambda venv: VecFrameStack(venv, n_stack=2)):
    env = DummyVecEnv([Plain for _ in range(3)])
    if wrap is not None:
        env = wrap(env)
    env.seed(0)
    assert env.render(mode='rgb_array').shape[2] == 3
    assert [picture.shape for picture in env.get_images()] == [(4, 4, 3)] * 3

    results = env.env_method('custom_method', 1, indices=None, dim_1=2)
    assert [result.shape for result in results] == [(1, 2)] * 3
    for i in range(3):
        assert env.set_attr('current_step', i, indices=i) is None
    assert env.get_attr('current_step') == [0, 1, 2]
    assert env.get_attr('current_step', 1) == [1]
    assert env.get_attr('current_step', indices=[-1]) == [2]
    assert env.get_attr('current_step', indices=range(1, 3)) == [1, 2]
    assert env.get_attr('current_step', indices=np.array([0, 2])) == [0, 2]
    results = env.env_method('custom_method', 1, indices=[0, 2], dim_1=3)
    assert [result.shape for result in results] == [(1, 3)] * 2

    env.reset()
    env.set_attr('current_step', 12, indices=[0, -1])
    assert env.get_attr('current_step') == [12, 0, 12]
    # 12 is past the end
    obs, rewards, dones, infos = env.step([env.action_space.sample() for _ in range(3)])
    assert dones.tolist() == [True, False, True]
    assert [env_.current_step for env_ in env.unwrapped.envs] == [0, 1, 0]
    try:
        env.get_attr('no_such_attribute')
    except AttributeError:
        pass
    else:
        raise AssertionError('found an attribute that does not exist')
    env.close()
