"""Put a tuning together: its specification, its folder and its executor."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from minerva.sweeps.display import Display
from minerva.sweeps.expansion import Algorithms
from minerva.sweeps.launch import RETRIES, check_arguments, make_executor
from minerva.tuning.spec import read_tune_spec

if TYPE_CHECKING:
    from minerva.tuning.tuner import Tuner

Result = TypeVar("Result")


def prepare(
    spec: str | Path | Mapping[str, Any],
    algorithms: Algorithms,
    out: str | Path | None = None,
    on: str = "local",
    jobs: int | None = None,
    address: str | None = None,
    retries: int = RETRIES,
    console: bool = True,
) -> Tuner:
    """Check everything and return the tuning; nothing is written or started.

    Args:
        spec: A TOML file, or a mapping of the same form.
        algorithms: The algorithms.
        out: The tuning's folder; by default ``runs/NAME``.
        on: "local" for processes of this machine, "ray" for tasks of a Ray cluster.
        jobs: How many runs at once; by default as many as there are cores for.
        address: The cluster's, for "ray": HOST:PORT, or None for the one that this machine belongs to.
        retries: How often a run is resumed that has failed without getting further.
        console: Show how far the tuning has come.

    Raises:
        ValueError: An argument or the specification is wrong, or a package is not installed.
    """
    check_arguments("tune", on, jobs, address, retries)
    known = Algorithms(algorithms.config_class, _once(algorithms.preset_settings), _once(algorithms.check_env))
    checked = read_tune_spec(spec, known)
    executor = make_executor(on, jobs, address, checked.sweep.resources)
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError('tune: needs matplotlib, which is not installed: pip install "minerva-rl[tune]".')
    from minerva.tuning.study import check_sampler
    from minerva.tuning.tuner import Tuner

    check_sampler(checked.search.sampler)
    folder = Path("runs") / checked.sweep.name if out is None else Path(out)
    return Tuner(checked, known, folder, executor, retries, Display(quiet=not console))


def _once(function: Callable[..., Result]) -> Callable[..., Result]:
    """Call a function once for the same arguments: each trial asks for the same preset."""
    known: dict[str, Result] = {}

    def call(*arguments: Any) -> Result:
        key = repr(arguments)
        if key not in known:
            known[key] = function(*arguments)
        return known[key]

    return call
