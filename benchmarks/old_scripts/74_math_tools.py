# Functions on arrays and schedules by name.
import numpy as np

from stable_baselines.common import (
    discount_with_boundaries, explained_variance_2d, flatten_arrays, unflatten_vector)
from stable_baselines.common.misc_util import flatten_lists, mpi_rank_or_zero
from stable_baselines.common.schedules import (
    SCHEDULES, LinearSchedule, Schedule, constant, double_linear_con, double_middle_drop, linear_schedule, middle_drop)
from stable_baselines.common.tile_images import tile_images

# the fourth step begins an episode
sums = discount_with_boundaries(np.array([1., 2., 3., 4., 5.]), np.array([1, 0, 0, 1, 0]), 0.5)
assert np.allclose(sums, [1 + 0.5 * (2 + 0.5 * 3), 2 + 0.5 * 3, 3, 4 + 0.5 * 5, 5])

y = np.array([[1., 7.], [2., 7.], [3., 7.]])
assert np.allclose(explained_variance_2d(y, y), [1, 0])  # a constant column explains nothing
assert explained_variance_2d(y + [[0.5, 0], [-0.5, 0], [0.5, 0]], y)[0] < 1

arrays = [np.arange(6).reshape(2, 3), np.array([9.]), np.ones((1, 2))]
vector = flatten_arrays(arrays)
assert vector.tolist() == [0, 1, 2, 3, 4, 5, 9, 1, 1]
for array, again in zip(arrays, unflatten_vector(vector, [array.shape for array in arrays])):
    assert np.array_equal(array, again)

assert flatten_lists([[1, 2], [], [3]]) == [1, 2, 3]
assert mpi_rank_or_zero() == 0

assert issubclass(LinearSchedule, Schedule)
for name, function, values in (('constant', constant, [1, 1, 1]), ('linear', linear_schedule, [0.9, 0.4, 0.1]),
                               ('middle_drop', middle_drop, [0.9, 0.075, 0.075]),
                               ('double_linear_con', double_linear_con, [0.8, 0.125, 0.125]),
                               ('double_middle_drop', double_middle_drop, [0.9, 0.075, 0.125])):
    assert SCHEDULES[name] is function
    assert np.allclose([function(progress) for progress in (0.1, 0.6, 0.9)], values), name

# five pictures: three rows of two
pictures = [np.full((2, 2, 3), k, dtype=np.uint8) for k in range(1, 6)]
assert tile_images(pictures)[::2, ::2, 0].tolist() == [[1, 2], [3, 4], [5, 0]]
