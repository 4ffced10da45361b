# In the manner of the zoo: train.py writes a folder, enjoy.py reads it.
import argparse
import os

import gym
import numpy as np

from stable_baselines import PPO2
from stable_baselines.bench import Monitor
from stable_baselines.common import set_global_seeds
from stable_baselines.common.callbacks import CheckpointCallback
from stable_baselines.common.vec_env import DummyVecEnv, VecNormalize

ALGOS = {'ppo2': PPO2}


def make_env(env_id, rank=0, seed=0, log_dir=None):
    def _init():
        set_global_seeds(seed + rank)
        env = gym.make(env_id)
        env.seed(seed + rank)
        log_file = os.path.join(log_dir, str(rank)) if log_dir is not None else None
        return Monitor(env, log_file)
    return _init


def train(args):
    path = os.path.join(args.folder, args.algo, args.env)
    os.makedirs(path)
    hyperparams = dict(n_steps=64, nminibatches=4, lam=0.98, gamma=0.999, noptepochs=4, ent_coef=0.01,
                       policy='MlpPolicy')
    env = VecNormalize(DummyVecEnv([make_env(args.env, i, args.seed, path) for i in range(2)]),
                       gamma=hyperparams['gamma'])
    model = ALGOS[args.algo](env=env, tensorboard_log='', seed=args.seed, verbose=0, **hyperparams)
    model.learn(n_timesteps, callback=CheckpointCallback(64, path))
    model.save(os.path.join(path, args.env))
    model.get_vec_normalize_env().save(os.path.join(path, 'vecnormalize.pkl'))
    return path


def enjoy(args, path):
    env = DummyVecEnv([make_env(args.env, 0, args.seed)])
    env = VecNormalize.load(os.path.join(path, 'vecnormalize.pkl'), env)
    env.training = False
    env.norm_reward = False
    model = ALGOS[args.algo].load(os.path.join(path, args.env + '.zip'), env=env)
    obs, episode_reward, episode_rewards, state = env.reset(), 0.0, [], None
    for _ in range(300):
        action, state = model.predict(obs, state=state, deterministic=not args.stochastic)
        if isinstance(env.action_space, gym.spaces.Box):
            action = np.clip(action, env.action_space.low, env.action_space.high)
        obs, reward, done, infos = env.step(action)
        episode_reward += reward[0]
        if done[0]:
            assert infos[0].get('episode')['r'] == episode_reward
            episode_rewards.append(episode_reward)
            episode_reward = 0.0
    print("Mean reward: {:.2f}".format(np.mean(episode_rewards)))
    env.close()
    return episode_rewards


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('--env', type=str, default='CartPole-v1')
    parser.add_argument('-f', '--folder', type=str, default='trained_agents')
    parser.add_argument('--algo', default='ppo2', choices=list(ALGOS.keys()))
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--stochastic', action='store_true', default=False)
    args = parser.parse_args()
    n_timesteps = int(256)
    path = train(args)
    assert sorted(os.listdir(path)) == ['0.monitor.csv', '1.monitor.csv', 'CartPole-v1.zip', 'rl_model_128_steps.zip',
                                        'rl_model_256_steps.zip', 'vecnormalize.pkl'], os.listdir(path)
    assert len(enjoy(args, path)) >= 1
