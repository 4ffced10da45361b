# Four processes, one environment in each.
import gym

from stable_baselines.common.policies import MlpPolicy
from stable_baselines.common.vec_env import SubprocVecEnv
from stable_baselines.common import set_global_seeds, make_vec_env
from stable_baselines import PPO2


def make_env(env_id, rank, seed=0):
    """Return a function that makes one environment with its own seed."""
    def _init():
        env = gym.make(env_id)
        env.seed(seed + rank)
        return env
    set_global_seeds(seed)
    return _init


if __name__ == '__main__':
    env_id = "CartPole-v1"
    num_cpu = 4
    env = SubprocVecEnv([make_env(env_id, i) for i in range(num_cpu)])
    assert env.num_envs == num_cpu

    model = PPO2(MlpPolicy, env, verbose=1, n_steps=32)
    model.learn(total_timesteps=256)
    assert model.num_timesteps == 256

    obs = env.reset()
    for _ in range(20):
        action, _states = model.predict(obs)
        obs, rewards, dones, info = env.step(action)
    assert obs.shape == (4, 4)
    env.close()

    # the short form
    env = make_vec_env(env_id, n_envs=2, seed=0)
    assert env.reset().shape == (2, 4)
    env.close()
