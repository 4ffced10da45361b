# In the manner of run_mujoco.py and run_atari.py: parsers, environments, schedules.
import numpy as np

from stable_baselines import PPO2, bench, logger
from stable_baselines.common.cmd_util import (
    arg_parser, atari_arg_parser, make_atari_env, make_mujoco_env, mujoco_arg_parser)
from stable_baselines.common.policies import CnnPolicy, MlpPolicy
from stable_baselines.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack, VecNormalize
from stable_baselines.ppo2 import PPO2 as from_its_module

assert from_its_module is PPO2


def train_mujoco(env_id, num_timesteps, seed):
    env = VecNormalize(DummyVecEnv([lambda: make_mujoco_env(env_id, seed)]))
    model = PPO2(policy=MlpPolicy, env=env, n_steps=64, nminibatches=8, lam=0.95, gamma=0.99, noptepochs=2,
                 ent_coef=0.0, learning_rate=3e-4, cliprange=0.2)
    model.learn(total_timesteps=num_timesteps)
    return model, env


def train_atari(env_id, num_timesteps, seed):
    env = VecFrameStack(make_atari_env(env_id, 2, seed, wrapper_kwargs=dict(episode_life=False), use_subprocess=True), 4)
    assert isinstance(env.unwrapped, SubprocVecEnv)
    model = PPO2(CnnPolicy, env, n_steps=8, nminibatches=2, noptepochs=1, ent_coef=0.01,
                 learning_rate=lambda f: f * 2.5e-4, cliprange=lambda f: f * 0.1)
    model.learn(total_timesteps=num_timesteps)
    env.close()
    return model


if __name__ == '__main__':
    assert arg_parser().parse_args([]) is not None
    args = mujoco_arg_parser().parse_args(['--num-timesteps', '128', '--play'])
    assert (args.env, args.seed, args.num_timesteps, args.play) == ('Reacher-v2', 0, 128, True)
    logger.configure('logs', ['log'])
    model, env = train_mujoco(args.env, args.num_timesteps, args.seed)
    assert model.num_timesteps == 128 and isinstance(env.venv.envs[0], bench.Monitor)
    if args.play:
        obs = np.zeros((env.num_envs,) + env.observation_space.shape)
        obs[:] = env.reset()
        for _ in range(60):
            actions = model.step(obs)[0]
            obs[:], rewards, dones, infos = env.step(actions)
        assert len(env.venv.envs[0].get_episode_rewards()) >= 1

    args = atari_arg_parser().parse_args(['--num-timesteps', '16'])
    assert args.env == 'BreakoutNoFrameskip-v4'
    assert train_atari(args.env, args.num_timesteps, args.seed).num_timesteps == 16
