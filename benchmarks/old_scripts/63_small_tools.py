# Small functions that scripts import.
import numpy as np

from stable_baselines.common import discount, explained_variance, set_global_seeds
from stable_baselines.common.cmd_util import arg_parser
from stable_baselines.common.math_util import safe_mean, scale_action, unscale_action
from stable_baselines.common.misc_util import boolean_flag, zipsame
from stable_baselines.common.running_mean_std import RunningMeanStd
from stable_baselines.ppo2.ppo2 import swap_and_flatten

assert np.allclose(discount(np.array([1., 1., 1.]), 0.5), [1.75, 1.5, 1.])
y = np.array([1., 2., 3.])
assert explained_variance(y, y) == 1 and np.isclose(explained_variance(np.zeros(3), y), 0)
assert np.isnan(explained_variance(y, np.ones(3)))
assert safe_mean([1, 2, 3]) == 2 and np.isnan(safe_mean([]))


class Space:
    low, high = np.array([-2.]), np.array([6.])


assert scale_action(Space, np.array([2.])) == [0.] and scale_action(Space, np.array([6.])) == [1.]
assert unscale_action(Space, np.array([-1.])) == [-2.] and unscale_action(Space, np.array([0.5])) == [4.]

assert list(zipsame([1, 2], [3, 4])) == [(1, 3), (2, 4)]
try:
    zipsame([1], [2, 3])
except AssertionError:
    pass
else:
    raise AssertionError('lists of two lengths')

parser = arg_parser()
boolean_flag(parser, 'render', default=False)
assert parser.parse_args(['--render']).render and not parser.parse_args(['--no-render']).render
set_global_seeds(0)

parts = [np.random.randn(n, 2) for n in (3, 4, 5)]
rms = RunningMeanStd(epsilon=0.0, shape=(2,))
for part in parts:
    rms.update(part)
together = np.concatenate(parts)
assert np.allclose(rms.mean, together.mean(axis=0)) and np.allclose(rms.var, together.var(axis=0)) and rms.count == 12
other = RunningMeanStd(epsilon=0.0, shape=(2,))
other.update_from_moments(together.mean(axis=0), together.var(axis=0), 12)
assert np.allclose(other.var, rms.var)

# [steps, environments, …] → [environments · steps, …]
assert swap_and_flatten(np.array([[1, 2], [3, 4], [5, 6]])).tolist() == [1, 3, 5, 2, 4, 6]
