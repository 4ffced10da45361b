"""MuJoCo on arrays: advance a batch of simulations with threads, each a function of its row alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import mujoco
import numpy as np
from mujoco.rollout import Rollout
from numpy.typing import NDArray

from minerva.environments.base import EnvironmentFailureError
from minerva.environments.tasks.base import Draws, Place, State, Task

Array = NDArray[np.float64]

AFTER_CONSTRAINTS = {"cacc", "cfrc_int", "cfrc_ext"}
"""Fields that `mj_step` leaves to `mj_rnePostConstraint`."""
ATTEMPTS = 1000
"""How often a start without contacts is drawn before that counts as a failure."""
FULL_PHYSICS = int(mujoco.mjtState.mjSTATE_FULLPHYSICS)
_ACTING = (
    "CONSTRAINT", "EQUALITY", "FRICTIONLOSS", "LIMIT", "CONTACT", "SPRING", "DAMPER", "GRAVITY", "CLAMPCTRL",
    "WARMSTART", "ACTUATION", "EULERDAMP",
)  # fmt: skip
"""Flags that switch off what is not needed to know where everything is and how fast it moves.

A step then computes that, and what sensors measure of it, and little else; where it moves to does not matter.
"""


class DivergedError(EnvironmentFailureError):
    """A simulation has diverged.

    Attributes:
        row: Which one.
    """

    def __init__(self, row: int) -> None:
        super().__init__(f"simulation {row} diverged")
        self.row = row


class Simulations(NamedTuple):
    """N simulations: all that their next steps depend on."""

    physics: Array  # [N, S]: time, positions, velocities and so on, as MuJoCo's mjSTATE_FULLPHYSICS
    warm_start: Array  # [N, nv]: accelerations that the constraint solver starts from
    derived: Array  # [N, D]: sensors, and the fields of mjData that the task reads
    memory: Array  # [N, M]: what the task has drawn for the episode

    def rows(self, rows: NDArray[np.int64]) -> Simulations:
        """Return some of them."""
        return Simulations(*(part[rows] for part in self))

    def merged(self, rows: NDArray[np.int64], others: NDArray[np.int64], begun: Simulations) -> Simulations:
        """Return these, which are at `rows`, together with those that have begun at `others`."""
        parts = []
        for mine, theirs in zip(self, begun, strict=True):
            part = np.empty((len(rows) + len(others), mine.shape[1]))
            part[rows], part[others] = mine, theirs
            parts.append(part)
        return Simulations(*parts)


class Simulator:
    """Advance simulations of a task's model.

    Without `Task.fields`, `mujoco.rollout` advances them in threads of its own. What the sensors measure after the step
    is then computed by a second model, in which nothing acts. With fields, threads of Python call `mj_step`, which
    releases the interpreter's lock. Which thread has which simulation changes nothing.

    Args:
        task: The task.
        threads: How many threads work.
    """

    def __init__(self, task: Task, threads: int) -> None:
        self.task, self.model = task, task.model
        self._datas = [mujoco.MjData(self.model) for _ in range(threads)]
        self._pool = ThreadPoolExecutor(threads - 1) if threads > 1 else None
        self._places, self._derived_size = _places(self._datas[0], task.fields)
        self._qpos = slice(1, 1 + self.model.nq)
        self._qvel = slice(self._qpos.stop, self._qpos.stop + self.model.nv)
        self._rollout = self._observer = None
        self._forces = _columns_of_forces(self.model)
        if not task.fields:
            observed = task.refresh and self._forces.size < self.model.nsensordata
            measures_nothing = observed and not self._forces.size
            stepped = _without(self.model, "SENSOR") if measures_nothing else self.model
            self._rollout = _Rollout(stepped, threads)
            self._observer = _Rollout(_without(self.model, *_ACTING), threads) if observed else None
        self._timestep = float(self.model.opt.timestep)
        # MuJoCo restarts a diverged simulation at time 0, so episodes begin later: it shows even in their first step.
        self._start_time = self._datas[0].time = task.dt
        self._at_rest = np.empty(mujoco.mj_stateSize(self.model, FULL_PHYSICS))
        mujoco.mj_getState(self.model, self._datas[0], self._at_rest, FULL_PHYSICS)

    def empty(self, count: int) -> Simulations:
        """Return simulations of zeros, of the right shapes."""
        widths = (self._at_rest.size, self.model.nv, self._derived_size, self.task.memory_size)
        return Simulations(*(np.zeros((count, width)) for width in widths))

    def state(self, simulations: Simulations) -> State:
        """Return what a task sees of simulations."""
        physics, _, derived, memory = simulations
        return State(physics[:, self._qpos], physics[:, self._qvel], memory, derived, self._places)

    def begin(self, generators: Sequence[np.random.Generator], environments: NDArray[np.int64]) -> Simulations:
        """Begin an episode in each of n environments, from draws of its own generator.

        Args:
            generators: One per environment.
            environments: Their numbers.

        Raises:
            EnvironmentFailureError: No start without contacts was found.
        """
        begun, contacts = self._draw(generators, environments)
        for _ in range(ATTEMPTS):
            if not (self.task.without_contacts and contacts.any()):
                return begun
            again = np.flatnonzero(contacts)
            redrawn, contacts[again] = self._draw([generators[row] for row in again.tolist()], environments[again])
            for whole, part in zip(begun, redrawn, strict=True):
                whole[again] = part
        number = environments[contacts.argmax()]
        raise EnvironmentFailureError(f"environment {number}: no start without contacts in {ATTEMPTS:,} attempts")

    def _draw(
        self, generators: Sequence[np.random.Generator], environments: NDArray[np.int64]
    ) -> tuple[Simulations, NDArray[np.bool_]]:
        """Draw how n episodes begin; return them, and which have contacts, ``[n]``."""
        qpos, qvel, memory = self.task.reset(Draws(generators, environments))
        begun = self.empty(len(qpos))
        begun.physics[:] = self._at_rest
        begun.physics[:, self._qpos], begun.physics[:, self._qvel] = qpos, qvel
        if memory is not None:
            begun.memory[:] = memory
        contacts = np.zeros(len(qpos), dtype=np.bool_)
        settle = self.task.settle_steps
        if not (self._derived_size or settle or self.task.without_contacts):
            return begun, contacts

        def work(data: Any, rows: Iterator[int]) -> None:
            sources = self._sources(data)
            for row in rows:
                mujoco.mj_resetData(self.model, data)
                if (
                    settle
                ):  # as in dm_control, where the first of these steps has the accelerations of the position at rest
                    mujoco.mj_forward(self.model, data)
                data.qpos[:], data.qvel[:] = qpos[row], qvel[row]
                if settle:
                    mujoco.mj_step2(self.model, data)
                    mujoco.mj_step(self.model, data, settle - 1)
                mujoco.mj_forward(self.model, data)
                contacts[row] = data.ncon > 0
                data.time = self._start_time
                mujoco.mj_getState(self.model, data, begun.physics[row], FULL_PHYSICS)
                begun.warm_start[row] = data.qacc_warmstart
                for columns, source in sources:
                    begun.derived[row, columns] = source

        self._each(len(qpos), work)
        return begun, contacts

    def advance(self, before: Simulations, actions: NDArray[Any]) -> Simulations:
        """Return simulations one environment step later.

        Raises:
            DivergedError: One of them has diverged.
        """
        control = actions.astype(np.float64)
        if not np.vdot(control, control) < np.inf:
            control[~np.isfinite(control).all(axis=1)] = 0.0  # as MuJoCo does, but there it ends a rollout
        after = (self._roll_out if self._rollout else self._advance_in_python)(before, control)
        passed = after.physics[:, 0] - before.physics[:, 0]
        if passed.min() < self.task.dt / 2:
            raise DivergedError(int(passed.argmin()))
        return after

    def _roll_out(self, before: Simulations, control: Array) -> Simulations:
        assert self._rollout is not None
        steps = self.task.frame_skip
        controls = control[:, None] if steps == 1 else control[:, None].repeat(steps, axis=1)
        physics, sensors = self._rollout.run(before.physics, controls, before.warm_start)
        last, derived = np.ascontiguousarray(physics[:, -1]), np.ascontiguousarray(sensors[:, -1])
        earlier = physics[:, -2] if steps > 1 else before.physics
        warm_start = (last[:, self._qvel] - earlier[:, self._qvel]) / self._timestep
        if self._observer is not None:
            measured = self._observer.run(last, controls[:, :1], None)[1][:, 0]
            if self._forces.size:
                measured[:, self._forces] = derived[:, self._forces]
            derived = measured
        return Simulations(last, warm_start, derived, before.memory)

    def _advance_in_python(self, before: Simulations, control: Array) -> Simulations:
        model, steps, refresh = self.model, self.task.frame_skip, self.task.refresh
        after_constraints = not AFTER_CONSTRAINTS.isdisjoint(self.task.fields)
        physics, warm_start, derived = (np.empty_like(part) for part in before[:3])

        def work(data: Any, rows: Iterator[int]) -> None:
            sources = self._sources(data)
            for row in rows:
                mujoco.mj_setState(model, data, before.physics[row], FULL_PHYSICS)
                data.qacc_warmstart[:], data.ctrl[:] = before.warm_start[row], control[row]
                mujoco.mj_step(model, data, steps)
                mujoco.mj_getState(model, data, physics[row], FULL_PHYSICS)
                warm_start[row] = data.qacc_warmstart
                if after_constraints:
                    mujoco.mj_rnePostConstraint(model, data)
                if refresh:
                    mujoco.mj_step1(model, data)
                for columns, source in sources:
                    derived[row, columns] = source

        self._each(len(control), work)
        return Simulations(physics, warm_start, derived, before.memory)

    def _sources(self, data: Any) -> list[tuple[slice, Array]]:
        """Return views of what is derived, with their columns."""
        sensors = self.model.nsensordata
        fields = [(self._places[name][0], getattr(data, name).reshape(-1)) for name in self.task.fields]
        return [(slice(sensors), data.sensordata)] * bool(sensors) + fields

    def _each(self, count: int, work: Callable[[Any, Iterator[int]], None]) -> None:
        """Let every thread take rows until there are none left."""
        rows = iter(range(count))
        if self._pool is None or count == 1:
            work(self._datas[0], rows)
            return
        others = [self._pool.submit(work, data, rows) for data in self._datas[1:count]]
        work(self._datas[0], rows)
        for other in others:
            other.result()

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()
        for rollout in (self._rollout, self._observer):
            if rollout is not None:
                rollout.close()


class _Rollout:
    """A model, and threads of `mujoco.rollout` for it."""

    def __init__(self, model: Any, threads: int) -> None:
        self._model = model
        self._datas = [mujoco.MjData(model) for _ in range(threads)]
        self._rollout = Rollout(nthread=threads if threads > 1 else 0)
        self._models: list[Any] = []

    def run(self, physics: Array, controls: Array, warm_start: Array | None) -> tuple[Array, Array]:
        """Return states ``[n, steps, S]`` and sensors ``[n, steps, D]`` under controls ``[n, steps, nu]``."""
        count, steps, _ = controls.shape
        if len(self._models) != count:
            self._models = [self._model] * count
        states, sensors = np.empty((count, steps, physics.shape[1])), np.empty((count, steps, self._model.nsensordata))
        self._rollout.rollout(
            self._models,
            self._datas,
            physics,
            controls,
            skip_checks=True,
            nstep=steps,
            initial_warmstart=warm_start,
            state=states,
            sensordata=sensors,
        )
        return states, sensors

    def close(self) -> None:
        """End the threads."""
        if self._rollout.rollout_ is not None:
            self._rollout.close()


def _without(model: Any, *names: str) -> Any:
    """Return a copy of a model that computes less."""
    less = copy.copy(model)
    for name in names:
        less.opt.disableflags |= int(getattr(mujoco.mjtDisableBit, f"mjDSBL_{name}"))
    if names == _ACTING:
        less.opt.integrator = mujoco.mjtIntegrator.mjINT_EULER
    return less


def _columns_of_forces(model: Any) -> NDArray[np.int64]:
    """Return which columns of the sensors measure forces or accelerations, not positions and velocities."""
    return np.flatnonzero(np.repeat(model.sensor_needstage, model.sensor_dim) == int(mujoco.mjtStage.mjSTAGE_ACC))


def _places(data: Any, fields: tuple[str, ...]) -> tuple[dict[str, Place], int]:
    """Return where each sensor and field is among the derived quantities, and how many numbers they are."""
    model = data.model
    places: dict[str, Place] = {}
    for sensor in map(model.sensor, range(model.nsensor)):
        start, size = int(sensor.adr[0]), int(sensor.dim[0])
        places[sensor.name] = slice(start, start + size), (size,)
    end = int(model.nsensordata)
    for field in fields:
        value = getattr(data, field)
        places[field] = slice(end, end + value.size), value.shape
        end += value.size
    return places, end
