# The first script of the documentation: make an environment, train, watch.
import gym

from stable_baselines.common.policies import MlpPolicy
from stable_baselines.common.vec_env import DummyVecEnv
from stable_baselines import PPO2

env = gym.make('CartPole-v1')
# The algorithm steps several environments at once, here only one
env = DummyVecEnv([lambda: env])

model = PPO2(MlpPolicy, env, verbose=1)
model.learn(total_timesteps=512)

obs = env.reset()
for i in range(30):
    action, _states = model.predict(obs)
    obs, rewards, dones, info = env.step(action)
    env.render()

assert obs.shape == (1, 4) and rewards.shape == (1,) and dones.shape == (1,) and len(info) == 1
env.close()
