"""Numbers worked by hand."""

import pytest

from benchmarks.cluster_model import (
    Loss,
    RolloutCosts,
    Round,
    Runs,
    SweepCosts,
    efficiency,
    file_operations,
    knee,
    limit_of,
    most_slots,
    receive_seconds,
    round_seconds,
    runs_per_second,
    shortest_run,
    sweep_seconds,
    tail_seconds,
    weights_seconds,
)  # fmt: skip

COSTS = SweepCosts(run=0.5, central=0.01)
FREE = SweepCosts(run=0.5, central=0.0)


def test_the_end_of_a_sweep_waits_for_the_longest_run() -> None:
    assert tail_seconds(Runs(10, 4.0, 4.0)) == 2.0  # any slot is half done with its last run
    assert tail_seconds(Runs(10, 0.0, 6.0)) == 6.0 - 12.0 / 6.0  # E[d²] = 36/3
    assert tail_seconds(Runs(10, 0.0, 0.0)) == 0.0


def test_slots_wait_for_the_process_that_serves_all() -> None:
    # One slot: 10.5 s per run. Two: at 10 ms of service, the other is found there with probability 0.01 / 10.5.
    assert runs_per_second(COSTS, run=10.0, slots=1) == pytest.approx(1 / 10.5)
    waiting = 0.01 / 10.5
    assert runs_per_second(COSTS, run=10.0, slots=2) == pytest.approx(2 / (10.49 + 0.01 * (1 + waiting)))
    # Few slots hardly wait, and many do nothing else: 100 runs per second at 10 ms each.
    assert runs_per_second(COSTS, run=9.5, slots=100) == pytest.approx(10.0, rel=0.002)
    assert runs_per_second(COSTS, run=9.5, slots=10_000) == pytest.approx(100.0)
    assert runs_per_second(SweepCosts(0.5, 0.01, simulator=0.1), run=9.5, slots=1000) == pytest.approx(10.0)


def test_between_few_slots_and_many_there_are_fewer_than_both_limits_say() -> None:
    # 1,000 slots would end 100 runs per second, as many as the process can serve.
    assert most_slots(COSTS, run=9.5) == pytest.approx(1000) and shortest_run(COSTS, 1000) == pytest.approx(9.5)
    assert 95.0 < runs_per_second(COSTS, run=9.5, slots=1000) < 100.0
    assert shortest_run(COSTS, slots=10) == 0.0


def test_a_sweep_takes_the_work_of_its_slots_and_the_wait_for_the_last_run() -> None:
    # 100 runs of 10.5 s in 10 slots are 105 s (nothing to serve); the last ones end 5 s after that of a mean slot.
    assert sweep_seconds(FREE, Runs(100, 10.0, 10.0), slots=10) == pytest.approx(105.0 + 5.0)
    # 10,000 runs at 10 ms each are 100 s.
    assert sweep_seconds(COSTS, Runs(10_000, 0.1, 0.1), slots=1000) == pytest.approx(100.0 + 0.05)


def test_a_lost_node_costs_its_slots_from_then_on_and_what_is_repeated() -> None:
    # 1,050 s of work; 2 of 10 slots are lost after 30 s, when 300 s are done, of which 2 times 5 s are repeated: the 8
    # others have 760 s left to do.
    lost = (Loss(at=30.0, slots=2, repeated=5.0),)
    assert sweep_seconds(FREE, Runs(100, 10.0, 10.0), 10, lost) == pytest.approx(30.0 + 760.0 / 8 + 5.0)


def test_the_file_system_serves_all_runs() -> None:
    # A run: a read and a touch in 10 s, a row in 5 s, two operations in 100 s; the sweep: 200 times open and read.
    assert file_operations(1000, heartbeat=10, log_rows=5, checkpoint=100, looks=200) == pytest.approx(420 + 400)


ONE = Round(segment_bytes=2e6, worker=2.0, learner=0.03, weights_bytes=1e6)
ROLLOUT = RolloutCosts(call=0.008, bytes_per_second=1e9, weights_call=0.001, weights_bytes_per_second=1e8)


def test_a_round_is_what_happens_one_after_the_other() -> None:
    assert receive_seconds(ROLLOUT, ONE) == pytest.approx(0.010)  # 8 ms, and 2 MB at 1 GB/s
    assert weights_seconds(ROLLOUT, ONE, nodes=10) == pytest.approx(0.110)  # 1 ms, and 1 MB at 100 MB/s, ten times
    assert round_seconds(ROLLOUT, ONE, workers=100, nodes=10) == pytest.approx(0.11 + 2.0 + 100 * 0.04)
    assert efficiency(ROLLOUT, ONE, workers=100, nodes=10) == pytest.approx(2.0 / 6.11)


def test_at_the_knee_the_learner_takes_as_long_as_the_workers() -> None:
    assert knee(ROLLOUT, ONE) == pytest.approx(50.0)  # 2 s at 40 ms per worker
    assert efficiency(ROLLOUT, ONE, workers=50, nodes=0) == pytest.approx(0.5)


def test_the_largest_part_is_named() -> None:
    assert limit_of(ROLLOUT, ONE, workers=10) == "workers"
    assert limit_of(ROLLOUT, ONE, workers=100) == "learner"
    assert limit_of(ROLLOUT, Round(1e3, 0.1, 0.001), workers=100) == "Ray's calls"
    assert limit_of(ROLLOUT, Round(1e8, 0.1, 0.001), workers=100) == "network and object store"
