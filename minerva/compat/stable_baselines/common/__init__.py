"""What scripts import from ``stable_baselines.common``."""

from typing import TYPE_CHECKING

from minerva.utils.lazy import lazy_imports

if TYPE_CHECKING:
    from minerva.compat.stable_baselines.common.base_class import ActorCriticRLModel as ActorCriticRLModel
    from minerva.compat.stable_baselines.common.base_class import BaseRLModel as BaseRLModel
    from minerva.compat.stable_baselines.common.cmd_util import make_vec_env as make_vec_env
    from minerva.compat.stable_baselines.common.math_util import discount as discount
    from minerva.compat.stable_baselines.common.math_util import discount_with_boundaries as discount_with_boundaries
    from minerva.compat.stable_baselines.common.math_util import explained_variance as explained_variance
    from minerva.compat.stable_baselines.common.math_util import explained_variance_2d as explained_variance_2d
    from minerva.compat.stable_baselines.common.math_util import flatten_arrays as flatten_arrays
    from minerva.compat.stable_baselines.common.math_util import unflatten_vector as unflatten_vector
    from minerva.compat.stable_baselines.common.misc_util import boolean_flag as boolean_flag
    from minerva.compat.stable_baselines.common.misc_util import set_global_seeds as set_global_seeds
    from minerva.compat.stable_baselines.common.misc_util import zipsame as zipsame

__getattr__, __dir__, __all__ = lazy_imports(__name__, __file__)
