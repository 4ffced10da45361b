# A function as callback: it is called after each step and stops with False.
import os

from stable_baselines import PPO2

calls = []


def simple_callback(_locals, _globals):
    """Save the model and stop after the first call."""
    calls.append(_locals['self'].num_timesteps)
    _locals['self'].save("saved_model")
    return False


model = PPO2('MlpPolicy', 'CartPole-v1', n_steps=16)
model.learn(2000, callback=simple_callback)
assert calls == [1] and os.path.exists("saved_model.zip")


def endless(_locals, _globals):
    calls.append(1)  # and return nothing: only False stops


model.learn(32, callback=endless)
assert len(calls) == 33 and model.num_timesteps == 32

n_steps = 0


def every_tenth(_locals, _globals):
    global n_steps
    n_steps += 1
    if n_steps % 10 == 0:
        print(n_steps, 'calls,', _locals['self'].num_timesteps, 'steps')
    return True


model.learn(32, callback=every_tenth)
assert n_steps == 32
