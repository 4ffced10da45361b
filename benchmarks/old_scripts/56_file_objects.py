# Save to and load from file objects; arguments of load.
import io

from stable_baselines import PPO2

model = PPO2('MlpPolicy', 'CartPole-v1', n_steps=32, gamma=0.9, seed=3, verbose=1)
obs = model.get_env().reset()
expected = model.action_probability(obs)

file = io.BytesIO()
model.save(file)
file.seek(0)
loaded = PPO2.load(file)
assert (loaded.action_probability(obs) == expected).all()
assert loaded.gamma == 0.9 and loaded.n_steps == 32 and loaded.seed == 3 and loaded.verbose == 1

with open('model.zip', 'wb') as opened:
    model.save(opened)
with open('model.zip', 'rb') as opened:
    assert (PPO2.load(opened).action_probability(obs) == expected).all()
assert (PPO2.load('model').action_probability(obs) == expected).all()

file.seek(0)
model.load_parameters(file)

loaded = PPO2.load('model.zip', env=model.get_env(), verbose=0, gamma=0.5, n_cpu_tf_sess=1, tensorboard_log='tb',
                   custom_objects={'ent_coef': 0.3})
assert loaded.gamma == 0.5 and loaded.verbose == 0 and loaded.ent_coef == 0.3 and loaded.tensorboard_log == 'tb'
assert loaded.n_cpu_tf_sess == 1
loaded.learn(32)

# the weights stay, so the sizes must
try:
    PPO2.load('model', policy_kwargs=dict(net_arch=[3]))
except ValueError:
    pass
else:
    raise AssertionError('loaded with another network')
try:
    PPO2.load('no_such_file')
except (ValueError, OSError):
    pass
else:
    raise AssertionError('loaded a file that does not exist')
