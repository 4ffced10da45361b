# The runner of a model: where collecting stands.
import numpy as np

from stable_baselines import PPO2
from stable_baselines.common.base_class import ActorCriticRLModel, BaseRLModel
from stable_baselines.common.cmd_util import make_vec_env
from stable_baselines.common.runners import AbstractEnvRunner

env = make_vec_env('CartPole-v1', n_envs=2, seed=0)
model = PPO2('MlpPolicy', env, n_steps=8)
assert isinstance(model, ActorCriticRLModel) and isinstance(model, BaseRLModel)
model.learn(32)

runner = model.runner
assert isinstance(runner, AbstractEnvRunner)
assert runner.env is env and runner.model is model
assert runner.n_steps == 8 and runner.gamma == 0.99 and runner.lam == 0.95
assert runner.obs.shape == (2, 4) and len(runner.dones) == 2 and runner.states is None
assert np.abs(runner.obs).max() > 0

# values and actions of a step, as the runner asks for them
actions, values, states, neglogp = model.step(runner.obs, runner.states, runner.dones)
assert actions.shape == (2,) and values.shape == (2,) and states is None and neglogp.shape == (2,)
p = model.proba_step(runner.obs, None, runner.dones)
assert np.allclose(-np.log(p[np.arange(2), actions]), neglogp, atol=1e-5)
assert np.allclose(model.value(runner.obs, None, runner.dones), values, atol=1e-5)

# the same runner goes on
model.learn(16)
assert model.runner is runner
