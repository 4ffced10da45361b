# The same in processes: attributes, seeds, last observations, start methods.
import functools

import gym
import numpy as np

from stable_baselines.common.vec_env import SubprocVecEnv, VecFrameStack


class StepEnv(gym.Env):
    """An episode of a given number of steps."""

    metadata = {'render.modes': ['rgb_array']}

    def __init__(self, max_steps):
        self.action_space = gym.spaces.Discrete(2)
        self.observation_space = gym.spaces.Box(np.array([0]), np.array([999]), dtype='int')
        self.max_steps = max_steps
        self.current_step = 0

    def reset(self):
        self.current_step = 0
        return np.array([self.current_step], dtype='int')

    def step(self, action):
        prev_step = self.current_step
        self.current_step += 1
        done = self.current_step >= self.max_steps
        return np.array([prev_step], dtype='int'), 0.0, done, {'step': prev_step}

    def seed(self, seed=None):
        return [seed]

    def render(self, mode='human'):
        return np.full((8, 8, 3), self.max_steps, dtype=np.uint8)


if __name__ == '__main__':
    env = SubprocVecEnv([functools.partial(StepEnv, n) for n in (5, 6, 7)])
    assert env.num_envs == 3
    assert env.get_attr('max_steps') == [5, 6, 7]
    assert env.get_attr('max_steps', indices=[0, -1]) == [5, 7] and env.get_attr('max_steps', -2) == [6]
    assert env.env_method('seed', 3, indices=[1]) == [[3]]
    env.seed(0)
    assert [image[0, 0, 0] for image in env.get_images()] == [5, 6, 7]
    assert env.render(mode='rgb_array').shape == (16, 16, 3)

    env.reset()
    for step in range(1, 8):
        env.step_async(np.zeros(3, dtype='int'))
        obs, rewards, dones, infos = env.step_wait()
        for i, last in enumerate((5, 6, 7)):
            assert dones[i] == (step == last)
            if dones[i]:
                assert infos[i]['terminal_observation'] == step - 1 and obs[i] == 0
            elif step < last:
                assert 'terminal_observation' not in infos[i] and infos[i]['step'] == obs[i, 0] == step - 1
    env.set_attr('max_steps', 2, indices=[1])
    assert env.get_attr('max_steps') == [5, 2, 7]
    env.close()

    env = VecFrameStack(SubprocVecEnv([functools.partial(StepEnv, 3)] * 2, start_method='spawn'), 2)
    assert env.reset().shape == (2, 2)
    env.close()

    try:
        SubprocVecEnv([functools.partial(StepEnv, 3)], start_method='illegal_method')
    except ValueError as error:
        assert 'illegal_method' in str(error)
    else:
        raise AssertionError('accepted an illegal start method')
