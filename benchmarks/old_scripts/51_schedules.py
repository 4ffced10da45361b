# Learning rates and clip ranges that change.
from stable_baselines import PPO2
from stable_baselines.common.callbacks import BaseCallback
from stable_baselines.common.schedules import (
    ConstantSchedule, LinearSchedule, PiecewiseSchedule, Scheduler, constfn, get_schedule_fn, linear_interpolation)
from stable_baselines.common.schedules import linear_schedule as linear_of_library

assert ConstantSchedule(3).value(100) == 3
linear = LinearSchedule(schedule_timesteps=100, initial_p=1.0, final_p=0.5)
assert [linear.value(t) for t in (0, 50, 100, 200)] == [1.0, 0.75, 0.5, 0.5]
pieces = PiecewiseSchedule([(-5, 100), (5, 200), (10, 50), (100, 50), (200, -50)], outside_value=500)
assert [pieces.value(t) for t in (-10, 0, 5, 9, 50, 80, 150, 175, 201)] == [500, 150, 200, 80, 50, 50, 0, -25, 500]
assert linear_interpolation(10, 20, 0.3) == 13
assert get_schedule_fn(0.1)(0.7) == 0.1 and constfn(2.)(0.1) == 2.
assert Scheduler(initial_value=1., n_values=10, schedule='linear').value_steps(5) == 0.5


def linear_schedule(initial_value):
    """Go down to zero with the remaining progress."""
    if isinstance(initial_value, str):
        initial_value = float(initial_value)

    def func(progress):
        asked.append(progress)
        return progress * initial_value

    return func


asked = []
schedule = linear_schedule('3e-4')
model = PPO2('MlpPolicy', 'CartPole-v1', n_steps=32, learning_rate=schedule, cliprange=constfn(0.1), cliprange_vf=-1)
model.learn(128)
# asked once for each update: from 1 downwards
assert sorted(set(asked), reverse=True) == [1.0, 0.75, 0.5, 0.25]
assert callable(model.learning_rate) and model.learning_rate(0.5) == 1.5e-4

# a schedule of the library survives in the file
small = PPO2('MlpPolicy', 'CartPole-v1', n_steps=32, cliprange=constfn(0.1), learning_rate=linear_of_library)
small.learn(32)
small.save('small')
small = PPO2.load('small', env=small.get_env())
assert get_schedule_fn(small.cliprange)(0.5) == 0.1 and get_schedule_fn(small.learning_rate)(0.25) == 0.75
small.learn(32)

# a number becomes a function
model = PPO2('MlpPolicy', 'CartPole-v1', n_steps=32, learning_rate=1e-3)
model.learn(32)
model.save('constant')
loaded = PPO2.load('constant', env=model.get_env())
loaded.learn(32)
assert get_schedule_fn(loaded.learning_rate)(0.3) == 1e-3

# another rate for what follows; a schedule goes with a model that is saved and loaded, or is given again
loaded = PPO2.load('constant', env=model.get_env(), learning_rate=schedule, cliprange=linear_schedule(0.2))
asked.clear()
loaded.learn(64)
assert 1.0 in asked and 0.5 in asked
loaded.save('scheduled')
again = PPO2.load('scheduled', env=model.get_env(),
                  custom_objects={'learning_rate': schedule, 'cliprange': linear_schedule(0.2)})
asked.clear()
again.learn(64)
assert 1.0 in asked and 0.5 in asked
