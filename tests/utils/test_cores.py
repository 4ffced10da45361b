from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from minerva.utils import cores
from minerva.utils.cores import usable_cores


@pytest.fixture(autouse=True)
def no_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("MINERVA_CORES", raising=False)
    monkeypatch.setattr(cores, "CGROUP_QUOTA", tmp_path / "cpu.max")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no CPU affinity")
def test_the_cores_that_a_process_may_run_on() -> None:
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); from minerva.utils.cores import *"
    answer = subprocess.run(
        [sys.executable, "-c", f"{code}; print(usable_cores())"], check=True, capture_output=True, text=True
    )
    assert answer.stdout.strip() == "1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("150000 100000", 2), ("400000 100000", 4), ("20000 100000", 1), ("max 100000", 64), ("", 64)],
)
def test_the_quota_of_a_container(text: str, expected: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64), raising=False)
    assert usable_cores() == 64
    (tmp_path / "cpu.max").write_text(text)
    assert usable_cores() == expected


@pytest.mark.parametrize(("value", "expected"), [("3", 3), ("1", 1), ("4,2", 4), ("0", 1), ("many", 64), ("", 64)])
def test_omp_num_threads_is_a_limit(value: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64), raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert usable_cores() == expected


@pytest.mark.parametrize(
    ("value", "omp", "expected"),
    [("3", "", 3), ("100", "", 64), (" 2 ", "", 2), ("", "5", 5), ("8", "1", 8)],  # threads of one process are torch's
)
def test_minerva_cores_limits_a_run(value: str, omp: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64), raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", omp)
    monkeypatch.setenv("MINERVA_CORES", value)
    assert usable_cores() == expected
    assert cores.machine_cores() == 64


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "²"])
def test_a_wrong_minerva_cores_is_named(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINERVA_CORES", value)
    with pytest.raises(ValueError, match=r"^MINERVA_CORES: must be a whole number from 1 on"):
        usable_cores()


@pytest.mark.parametrize(
    ("before", "given", "expected"),
    [
        ("", {}, cores.SPIN_COUNT),
        ("", {"GOMP_SPINCOUNT": "7"}, "7"),
        ("", {"OMP_WAIT_POLICY": "ACTIVE"}, None),
        ("import torch; ", {}, None),  # too late
    ],
)
def test_threads_wait_briefly_unless_the_user_sets_how(
    before: str, given: dict[str, str], expected: str | None
) -> None:
    clean = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    code = f"{before}import minerva, os, sys; print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", code], env={**clean, **given}, capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == [str(expected), str(bool(before))]


LIMITED = """
import resource
from minerva.utils.cores import check_threads

used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**31, used + 2**31))  # the stacks of 1000 threads take 8 GB
check_threads("torch_threads", 8)
check_threads("torch_threads", 1000)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_more_threads_than_the_operating_system_allows() -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, timeout=60, check=False)
    *_, last = done.stderr.splitlines()
    assert re.fullmatch(
        r"ValueError: torch_threads: the operating system refuses so many threads, got 1000; use at most \d+\.", last
    )
