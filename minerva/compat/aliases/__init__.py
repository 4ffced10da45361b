"""The names of older packages, ``stable_baselines`` and ``gym``, for Minerva's modules.

Worker processes find them too, through files in a folder on the search path. This package must not import torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

ALIASES = {
    "stable_baselines": "minerva.compat.stable_baselines",
    "gym": "minerva.compat.gym",
    "tensorflow": "minerva.compat.tensorflow",
}
TENSORFLOW = "tensorflow"


def real_name(name: str) -> str | None:
    """Return the name of Minerva's module for an older name such as ``gym.spaces``, None for other names."""
    root, dot, rest = name.partition(".")
    return ALIASES[root] + dot + rest if root in ALIASES else None


class AliasFinder(MetaPathFinder, Loader):
    """Import Minerva's modules under their older names: the same module objects, not copies.

    Args:
        roots: The older packages.
    """

    def __init__(self, roots: Sequence[str]) -> None:
        self.roots = set(roots)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how a module is imported."""
        real = real_name(fullname) if fullname.partition(".")[0] in self.roots else None
        if real is None:
            return None
        if importlib.util.find_spec(real) is None:
            raise ModuleNotFoundError(_not_available(fullname), name=fullname)
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return Minerva's module."""
        module = importlib.import_module(real_name(spec.name) or spec.name)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own specification, which importing it under another name has replaced."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def _not_available(name: str) -> str:
    if name.startswith(TENSORFLOW):
        return f"{name} is not available: TensorFlow is not installed, only its activation functions have a stand-in."
    if name.startswith("gym"):
        return f"{name} is not available: Minerva has only the part of gym that most scripts use."
    return f"{name} is not available: of stable-baselines' algorithms Minerva has PPO2."


def install() -> None:
    """Make the older names importable, in this process and in those that it starts.

    They come before packages of the same name. ``tensorflow`` is added only if it is not installed.
    """
    if any(isinstance(finder, AliasFinder) for finder in sys.meta_path):
        return
    here = Path(__file__).parent
    roots = ["stable_baselines", "gym"]
    shims = [str(here / "_shims")]
    if importlib.util.find_spec(TENSORFLOW) is None or str(here / "_tensorflow_shim") in sys.path:
        roots.append(TENSORFLOW)
        shims.append(str(here / "_tensorflow_shim"))
        # TensorBoard would take the stand-in for TensorFlow; this name tells it to do without.
        sys.modules.setdefault("tensorboard.compat.notf", ModuleType("tensorboard.compat.notf"))
    sys.meta_path.insert(0, AliasFinder(roots))
    sys.path[:0] = [path for path in shims if path not in sys.path]


def replace(name: str) -> None:
    """Install the aliases and put Minerva's module in the place of the file that stands for it."""
    install()
    sys.modules[name] = importlib.import_module(ALIASES[name])
