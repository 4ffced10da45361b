# Pong with the usual preprocessing and four frames.
from stable_baselines import PPO2
from stable_baselines.common.cmd_util import make_atari_env
from stable_baselines.common.vec_env import VecFrameStack

env = make_atari_env('PongNoFrameskip-v4', num_env=2, seed=0)
assert env.observation_space.shape == (84, 84, 1)
env = VecFrameStack(env, n_stack=4)
assert env.observation_space.shape == (84, 84, 4)

model = PPO2('CnnPolicy', env, n_steps=8, nminibatches=2, noptepochs=1, verbose=1)
model.learn(total_timesteps=32)

obs = env.reset()
for _ in range(5):
    action, _states = model.predict(obs)
    obs, rewards, dones, info = env.step(action)
    picture = env.render(mode='rgb_array')
assert obs.dtype == 'uint8' and obs.max() > 1
# a picture with the screens of both games
assert picture.ndim == 3 and picture.shape[2] == 3 and picture.max() > 0
env.close()
