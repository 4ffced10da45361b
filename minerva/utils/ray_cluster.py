"""Connect to a Ray cluster, or start one on this machine. Import this before Ray."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from typing import Any

# Read when Ray is imported: no report to its makers, no print of errors that nobody asks for (of all workers but the
# first), and a run that asks for no GPU sees those there are.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

_KNOCK_SECONDS = 10.0
_users = 0  # of the connection that this module has made


def connect(address: str | None, local_cores: int | None = None) -> bool:
    """Connect to a cluster, unless this process is connected; return whether to call `disconnect` in the end.

    Args:
        address: The cluster's, HOST:PORT; None for the one that this machine belongs to.
        local_cores: Where `address` is None: start Ray for this process, with which it ends, with so many cores.

    Raises:
        ValueError: There is none.
    """
    global _users
    import ray

    if not ray.is_initialized():
        where = f"at {address}" if address else "to which this machine belongs"
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        try:
            if address is not None:
                knock(address)
            with warnings.catch_warnings():
                # JAX, which EnvPool imports, warns of each fork; Ray's processes begin with one and use no JAX.
                warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
                if address is None and local_cores is not None:
                    ray.init("local", num_cpus=local_cores, include_dashboard=False, **options)
                else:
                    ray.init(address or "auto", **options)
        except (OSError, RuntimeError, ValueError, AssertionError) as error:
            raise ValueError(
                f"address: there is no Ray cluster {where} that can be used ({_first_line(error)}); start one with "
                "`ray start --head`, and this command on one of its nodes."
            ) from error
    elif _users == 0:
        return False  # somebody else has connected
    _users += 1
    return True


def disconnect() -> None:
    """End the connection that `connect` has made, when the last one who uses it calls this."""
    global _users
    import ray

    _users -= 1
    if _users == 0:
        ray.shutdown()


def alive_nodes() -> list[dict[str, Any]]:
    """Return what Ray says of each node that is alive."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def knock(address: str) -> None:
    """Check that something answers at an address; Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError("an address is HOST:PORT, such as 127.0.0.1:6379")
    socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_SECONDS).close()


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
