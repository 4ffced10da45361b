import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.annotate.browser import browser as browser  # a fixture
from tests.annotate.browser import served

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The site, built strictly, once for all processes that run tests."""
    shared = tmp_path_factory.getbasetemp() if worker_id == "master" else tmp_path_factory.getbasetemp().parent
    folder = shared / "site"
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "index.html").exists():
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
            built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
            assert built.returncode == 0 and not built.stderr, built.stderr
    return folder


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    with served(site) as url:
        yield url
