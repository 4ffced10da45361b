# Wrong dictionaries are refused and change nothing.
import numpy as np

from stable_baselines import PPO2

model = PPO2('MlpPolicy', 'CartPole-v1')
before = model.get_parameters()


def unchanged():
    return all(np.array_equal(before[name], value) for name, value in model.get_parameters().items())


incomplete = {name: value + 1 for name, value in before.items() if name != 'model/vf/b:0'}
try:
    model.load_parameters(incomplete)
except RuntimeError as error:
    assert 'model/vf/b:0' in str(error)
else:
    raise AssertionError('accepted an incomplete dictionary')
assert unchanged()

for exact_match in (True, False):
    unknown = {name: value + 1 for name, value in before.items()}
    unknown['model/no_such_layer/w:0'] = np.zeros(3)
    try:
        model.load_parameters(unknown, exact_match=exact_match)
    except KeyError as error:
        assert 'no_such_layer' in str(error)
    else:
        raise AssertionError('accepted an unknown name')
    assert unchanged()

try:
    model.load_parameters({'model/pi/w:0': np.zeros((3, 3))}, exact_match=False)
except ValueError:
    pass
else:
    raise AssertionError('accepted a wrong shape')
assert unchanged()

model.load_parameters({'model/pi/b:0': np.array([5., -5.])}, exact_match=False)
assert np.array_equal(model.get_parameters()['model/pi/b:0'], [5, -5])
assert not unchanged()
