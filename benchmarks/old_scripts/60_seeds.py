# The same seed, the same results.
import numpy as np

from stable_baselines import PPO2
from stable_baselines.common import set_global_seeds
from stable_baselines.common.cmd_util import make_vec_env


def train(seed):
    model = PPO2('MlpPolicy', make_vec_env('CartPole-v1', n_envs=2), n_steps=32, seed=seed, n_cpu_tf_sess=1)
    model.learn(128)
    obs = np.linspace(-0.1, 0.1, 20).reshape(5, 4)
    return model.get_parameters(), [model.predict(obs, deterministic=False)[0].tolist() for _ in range(10)], model


first, actions, model = train(0)
second, again, _ = train(0)
other, others, _ = train(1)
for name, value in first.items():
    assert np.array_equal(value, second[name]), name
assert actions == again and actions != others
assert not np.array_equal(first['model/pi/w:0'], other['model/pi/w:0'])

model.set_random_seed(4)
obs = model.get_env().reset()
model.set_random_seed(4)
assert (model.get_env().reset() == obs).all()

set_global_seeds(9)
numbers = np.random.rand(3)
set_global_seeds(9)
assert (np.random.rand(3) == numbers).all()
