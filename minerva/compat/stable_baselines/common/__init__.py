"""What scripts import from ``stable_baselines.common``."""

from typing import TYPE_CHECKING

from minerva.utils.lazy import lazy_imports

if TYPE_CHECKING:
    from minerva.compat.stable_baselines.common.cmd_util import make_vec_env as make_vec_env

__getattr__, __dir__, __all__ = lazy_imports(__name__, __file__)
