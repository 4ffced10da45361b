# Collect the pictures of an agent, for a GIF.
import numpy as np

from stable_baselines import PPO2
from stable_baselines.common.cmd_util import make_vec_env

model = PPO2("MlpPolicy", "CartPole-v1", n_steps=32).learn(64)

images = []
obs = model.env.reset()
img = model.env.render(mode='rgb_array')
for i in range(20):
    images.append(img)
    action, _ = model.predict(obs)
    obs, _, _, _ = model.env.step(action)
    img = model.env.render(mode='rgb_array')
assert len({np.asarray(image).tobytes() for image in images}) > 5
assert all(image.ndim == 3 and image.shape[2] == 3 and image.dtype == np.uint8 for image in images)

# four environments in one picture, two by two
env = make_vec_env("CartPole-v1", n_envs=4)
env.reset()
height, width = env.get_images()[0].shape[:2]
assert env.render(mode='rgb_array').shape == (2 * height, 2 * width, 3)
env.close()
