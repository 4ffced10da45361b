from __future__ import annotations

import os
import signal
import subprocess
import sys

CODE = """
import os, sys, time
from minerva.utils.parent import end_with_parent
end_with_parent()
print(os.environ.get("MINERVA_PARENT"))
time.sleep(float(sys.argv[1]))
"""


def test_a_process_ends_at_once_where_another_is_its_parent() -> None:
    """As after the death of the expected one, whose place the system's first process takes."""
    variables = {**os.environ, "MINERVA_PARENT": "1" if os.getpid() != 1 else "2"}
    done = subprocess.run([sys.executable, "-c", CODE, "60"], env=variables, timeout=30, check=False)
    assert done.returncode == -signal.SIGKILL


def test_a_process_stays_while_its_parent_lives_and_its_own_children_are_not_concerned() -> None:
    for value in (str(os.getpid()), "", "nonsense"):
        variables = {**os.environ, "MINERVA_PARENT": value}
        command = [sys.executable, "-c", CODE, "0.5"]
        done = subprocess.run(command, env=variables, timeout=30, check=False, capture_output=True, text=True)
        assert done.returncode == 0 and done.stdout == "None\n"
