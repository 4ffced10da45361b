"""Put a sweep together: its specification, its folder and its executor."""

from __future__ import annotations

from pathlib import Path

from minerva.sweeps.display import Display
from minerva.sweeps.executor import Executor
from minerva.sweeps.expansion import Algorithms, expand
from minerva.sweeps.spec import Resources, Spec
from minerva.sweeps.sweep import Sweep
from minerva.utils.ranges import Range, shown, whole_number
from minerva.utils.ranks import launched

RETRIES = 2
EXECUTORS = ("local", "ray")


def prepare(
    spec: Spec,
    algorithms: Algorithms,
    out: str | Path | None = None,
    on: str = "local",
    jobs: int | None = None,
    address: str | None = None,
    retries: int = RETRIES,
    console: bool = True,
    flat: bool = False,
) -> Sweep:
    """Check everything and return the sweep; nothing is written or started.

    Args:
        spec: The specification.
        algorithms: The algorithms.
        out: The sweep's folder; by default ``runs/NAME``.
        on: "local" for processes of this machine, "ray" for tasks of a Ray cluster.
        jobs: How many runs at once; by default as many as there are cores for.
        address: The cluster's, for "ray": HOST:PORT, or None for the one that this machine belongs to.
        retries: How often a run is resumed that has failed without getting further.
        console: Show how far the sweep has come.
        flat: Name the folders by the seed alone, for one algorithm, environment and variant.

    Raises:
        ValueError: An argument or the specification is wrong.
    """
    check_arguments("sweep", on, jobs, address, retries)
    runs = expand(spec, algorithms, flat)
    folder = Path("runs") / spec.name if out is None else Path(out)
    executor = make_executor(on, jobs, address, spec.resources)
    return Sweep(
        spec.name, runs, folder, executor, spec.resources, retries, spec.keep_replay, Display(quiet=not console)
    )


def check_arguments(command: str, on: str, jobs: int | None, address: str | None, retries: int) -> None:
    """Check what does not stand in the specification.

    Raises:
        ValueError: An argument is wrong.
    """
    if launched():
        raise ValueError(f"{command}: is started by one process, got several (torchrun); start it without torchrun.")
    if on not in EXECUTORS:
        raise ValueError(f"on: must be {' or '.join(map(repr, EXECUTORS))}, got {shown(on)}.")
    if address is not None and on != "ray":
        raise ValueError(f"address: is for a Ray cluster, got {shown(address)} for {on!r}; add on = 'ray' (--on ray).")
    if jobs is not None:
        whole_number("jobs", jobs, Range(1, 100_000, "be a whole number from 1 on"))
    whole_number("retries", retries, Range(0, 1000, "be a whole number from 0 on"))


def make_executor(on: str, jobs: int | None, address: str | None, resources: Resources) -> Executor:
    """Return what starts the runs.

    Raises:
        ValueError: It needs what is not installed, or more than this machine has.
    """
    if on == "ray":
        from minerva.sweeps.ray_tasks import RayExecutor

        return RayExecutor(address, jobs, resources)
    from minerva.sweeps.local import LocalExecutor

    return LocalExecutor(jobs, resources)
