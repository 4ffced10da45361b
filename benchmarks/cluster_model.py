"""A model of how long a sweep takes on a cluster, and a round of rollout workers: one function per formula.

The page "How far it scales" (docs/how-to/scale.md) explains it; `benchmarks/simulated_cluster.py` measures the
constants and compares predictions with a cluster. To compute a case of your own:

    from benchmarks.cluster_model import RolloutCosts, Round, knee, limit_of, round_seconds

    costs, mine = RolloutCosts(call=0.001, bytes_per_second=1e9), Round(segment_bytes=2e6, worker=2.0, learner=0.05)
    print(knee(costs, mine), limit_of(costs, mine, workers=100), round_seconds(costs, mine, workers=100))

Times are in seconds, sizes in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

BYTES_PER_FLOAT = 4

# A sweep


@dataclass(frozen=True)
class SweepCosts:
    """What a run costs besides its own time."""

    run: float
    """Of its slot: Ray's task, the start of its process, and the notice of its end."""
    central: float
    """Of the sweep's own process, which does this for one run after the other."""
    simulator: float = 0.0
    """Of the one machine on which a cluster is simulated; 0 on a real cluster, whose nodes work side by side."""


@dataclass(frozen=True)
class Runs:
    """The runs of a sweep, whose times are spread evenly from `shortest` to `longest`."""

    count: int
    shortest: float
    longest: float

    @property
    def mean(self) -> float:
        """Return the mean time of a run."""
        return (self.shortest + self.longest) / 2


@dataclass(frozen=True)
class Loss:
    """A node that dies."""

    at: float
    """Seconds from the start of the sweep."""
    slots: int
    """Runs that it had room for."""
    repeated: float
    """Slot time that each of these runs costs again: until the loss is noticed, and since the last checkpoint."""


def tail_seconds(runs: Runs) -> float:
    """Return how long after the mean slot is out of work the last run ends.

    A slot that is looked at anytime is in the middle of a run, which goes on for E[d²] / 2E[d] on average; the longest
    goes on for almost the longest time there is.
    """
    square = runs.mean**2 + (runs.longest - runs.shortest) ** 2 / 12
    return runs.longest - square / (2 * runs.mean) if runs.mean else 0.0


def runs_per_second(costs: SweepCosts, run: float, slots: int) -> float:
    """Return how many runs end per second while all slots are in use.

    Each slot alternates between a run and the one process that serves all slots, where it may have to wait: a closed
    queue, whose length for one more slot follows from the length without it (mean value analysis).
    """
    service = max(costs.central, costs.simulator)
    alone = max(run + costs.run, service)  # the service included
    rate = waiting = 0.0
    for count in range(1, slots + 1):
        at_the_server = service * (1 + waiting)
        rate = count / (alone - service + at_the_server)
        waiting = rate * at_the_server
    return rate


def sweep_seconds(costs: SweepCosts, runs: Runs, slots: int, losses: tuple[Loss, ...] = ()) -> float:
    """Return how long a sweep takes."""
    seconds, done = 0.0, 0.0
    for loss in losses:
        rate = runs_per_second(costs, runs.mean, slots)
        done += rate * (loss.at - seconds) - loss.slots * loss.repeated / (runs.mean + costs.run)
        seconds, slots = loss.at, slots - loss.slots
    return seconds + (runs.count - done) / runs_per_second(costs, runs.mean, slots) + tail_seconds(runs)


def shortest_run(costs: SweepCosts, slots: int) -> float:
    """Return the mean time of a run below which the slots wait for the sweep's own process."""
    return max(slots * max(costs.central, costs.simulator) - costs.run, 0.0)


def most_slots(costs: SweepCosts, run: float) -> float:
    """Return how many slots the sweep's own process can keep busy with runs of some mean time."""
    return (run + costs.run) / max(costs.central, costs.simulator)


def file_operations(running: float, heartbeat: float, log_rows: float, checkpoint: float, looks: float) -> float:
    """Return operations per second on the file system that all nodes share.

    Args:
        running: Runs at once.
        heartbeat: Seconds between two signs of life of a run's lock, each a read and a touch.
        log_rows: Seconds between two writes into a run's log.
        checkpoint: Seconds between two checkpoints, each a write and a rename.
        looks: Logs per second that the sweep opens and reads.
    """
    return running * (2 / heartbeat + 1 / log_rows + 2 / checkpoint) + 2 * looks


# Rollout workers


@dataclass(frozen=True)
class RolloutCosts:
    """What a round of rollout workers costs besides the work itself."""

    call: float
    """Of the learner's process, per worker: to ask it, and to receive what it returns."""
    bytes_per_second: float
    """With which segments reach the learner."""
    weights_call: float = 0.0
    """Per node that fetches the weights."""
    weights_bytes_per_second: float = float("inf")
    """With which weights leave the learner."""


@dataclass(frozen=True)
class Round:
    """One round: each worker takes its steps with the learner's weights, then the learner updates them."""

    segment_bytes: float
    """Of one worker."""
    worker: float
    """Time in which a worker takes its steps, side by side with the others."""
    learner: float
    """Time of the update per worker: it grows with the batch."""
    weights_bytes: float = 0.0


class Task(NamedTuple):
    """What is learned, as far as its times and sizes go."""

    name: str
    steps: int
    """T of a segment [T, n]."""
    environments: int
    """n of one worker."""
    bytes_per_step: int
    """Of one environment: observation, action, reward, flags, log-probability and value."""
    parameters: int
    step: float
    """Seconds in which a worker steps all its environments once and acts."""
    update: float
    """Seconds of the learner per step of one environment, all passes together."""

    def round(self) -> Round:
        """Return its times and sizes as the model wants them."""
        samples = self.steps * self.environments
        return Round(
            segment_bytes=samples * self.bytes_per_step,
            worker=self.steps * self.step,
            learner=samples * self.update,
            weights_bytes=self.parameters * BYTES_PER_FLOAT,
        )


def receive_seconds(costs: RolloutCosts, one: Round) -> float:
    """Return what the segment of one more worker costs the learner."""
    return costs.call + one.segment_bytes / costs.bytes_per_second


def weights_seconds(costs: RolloutCosts, one: Round, nodes: int) -> float:
    """Return how long it takes until each node has the weights; a node fetches them once for all its workers."""
    return nodes * (costs.weights_call + one.weights_bytes / costs.weights_bytes_per_second)


def round_seconds(costs: RolloutCosts, one: Round, workers: int, nodes: int = 1) -> float:
    """Return how long a round takes."""
    return (
        weights_seconds(costs, one, nodes) + one.worker + workers * (receive_seconds(costs, one) + one.learner)
    )  # fmt: skip


def efficiency(costs: RolloutCosts, one: Round, workers: int, nodes: int = 1) -> float:
    """Return steps per second, as a share of those of as many workers that wait for nothing."""
    return one.worker / round_seconds(costs, one, workers, nodes)


def knee(costs: RolloutCosts, one: Round) -> float:
    """Return the number of workers at which the learner's part of a round becomes as long as the workers'."""
    return one.worker / (receive_seconds(costs, one) + one.learner)


def limit_of(costs: RolloutCosts, one: Round, workers: int, nodes: int = 1) -> str:
    """Return the largest part of a round."""
    parts = {
        "workers": one.worker,
        "learner": workers * one.learner,
        "Ray's calls": workers * costs.call + nodes * costs.weights_call,
        "network and object store": workers * one.segment_bytes / costs.bytes_per_second
        + nodes * one.weights_bytes / costs.weights_bytes_per_second,
    }
    return max(parts, key=lambda name: parts[name])
