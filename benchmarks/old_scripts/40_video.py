# Record videos.
import os

import gym

from stable_baselines.common.vec_env import DummyVecEnv, VecVideoRecorder

env_id = 'CartPole-v1'
video_folder = 'logs/videos/'
video_length = 20

env = DummyVecEnv([lambda: gym.make(env_id)])
obs = env.reset()

# the video starts at the first step
env = VecVideoRecorder(env, video_folder, record_video_trigger=lambda x: x == 0, video_length=video_length,
                       name_prefix="random-agent-{}".format(env_id))
env.reset()
for _ in range(video_length + 1):
    action = [env.action_space.sample()]
    obs, _, _, _ = env.step(action)
    assert obs.shape == (1, 4)
env.close()

videos = [name for name in os.listdir(video_folder) if name.endswith('.mp4')]
assert videos == ['random-agent-CartPole-v1-step-0-to-step-20.mp4'], os.listdir(video_folder)
assert os.path.getsize(os.path.join(video_folder, videos[0])) > 1000
