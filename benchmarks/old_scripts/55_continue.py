# Train, look, train on.
import numpy as np

from stable_baselines import PPO2
from stable_baselines.common.cmd_util import make_vec_env

env = make_vec_env('CartPole-v1', n_envs=1, seed=0)
model = PPO2('MlpPolicy', env, n_steps=20, nminibatches=2)
model.learn(40)
assert model.num_timesteps == 40
model.learn(40, reset_num_timesteps=False)
assert model.num_timesteps == 80
model.learn(40)
assert model.num_timesteps == 40

# the environment is not reset between two calls: the episode goes on
steps = env.get_attr('total_steps')[0]
assert steps == 120
lengths = env.envs[0].get_episode_lengths()
assert sum(lengths) + len(env.envs[0].rewards) == 120 and len(model.ep_info_buf) == len(lengths)

for epoch in range(3):
    model.learn(20, reset_num_timesteps=False, log_interval=10)
    model.save('epoch_{}'.format(epoch))
    parameters = model.get_parameters()
    loaded = PPO2.load('epoch_{}'.format(epoch), env=env)
    for name, value in loaded.get_parameters().items():
        assert np.array_equal(value, parameters[name])
    model = loaded
