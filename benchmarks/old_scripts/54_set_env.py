# Train in another environment.
import gym

from stable_baselines import PPO2
from stable_baselines.common.cmd_util import make_vec_env

model = PPO2('MlpPolicy', make_vec_env('CartPole-v1', n_envs=2), n_steps=32)
model.learn(64)
assert model.n_envs == 2 and model.n_batch == 64

model.set_env(make_vec_env('CartPole-v1', n_envs=4))
assert model.n_envs == 4 and model.n_batch == 128 and model.get_env().num_envs == 4
model.learn(128)
assert model.num_timesteps == 128

# other spaces are refused
for wrong in (make_vec_env('Pendulum-v0'), None):
    try:
        model.set_env(wrong)
    except (AssertionError, ValueError):
        pass
    else:
        raise AssertionError('accepted {}'.format(wrong))
assert model.get_env().num_envs == 4

# a loaded model has no environment until it gets one
model.save('model')
model = PPO2.load('model')
try:
    model.learn(32)
except ValueError:
    pass
else:
    raise AssertionError('learned without an environment')
model.set_env(make_vec_env('CartPole-v1', n_envs=1))
model.learn(64)

# a plain environment is wrapped by the constructor and by load
env = gym.make('CartPole-v1')
model = PPO2('MlpPolicy', env, n_steps=16)
assert model.get_env().num_envs == 1
assert model.get_env().envs[0] is env or model.get_env().envs[0].unwrapped is env.unwrapped
