"""Several processes that train one run together, as torchrun starts them: which one this is, and what they exchange.

A rank is one of these processes, counted from 0. All of them run the same program in the same order: what one of them
exchanges, all of them do. With one process nothing is exchanged, and every sum over ranks is what was to be summed.
"""

from __future__ import annotations

import atexit
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the command line asks `is_silent` before it needs torch
    import torch
    from torch import Tensor

PATIENCE = timedelta(days=1)
"""How long a rank waits for another one that is alive: for rank 0's evaluations, say. One that ends is noticed at once,
because its connection closes."""


class RankLostError(ConnectionError):
    """Another process of the run has ended."""


def launched() -> bool:
    """Return whether torchrun started this process as one of several."""
    return "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_silent() -> bool:
    """Return whether this process leaves it to rank 0 to talk to the user."""
    return launched() and os.environ.get("RANK", "0") != "0"


class Ranks:
    """This process and the others that train the same run; this class is one process alone.

    Attributes:
        rank: Which one this is, from 0.
        count: How many there are, G.
    """

    rank = 0
    count = 1

    def total(self, x: Tensor) -> Tensor:
        """Return the sum over all ranks of tensors of one shape, the same bits on each of them."""
        return x

    def gather(self, x: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, in their order; they have one shape."""
        return [x]

    def whole(self, rows: Tensor) -> Tensor:
        """Return the rows of all ranks, one rank after the other: ``[B, ...]`` to ``[G B, ...]``."""
        return rows

    def own(self, rows: Tensor) -> Tensor:
        """Return this rank's part of what `whole` returned."""
        return rows

    def collect(self, value: Any) -> list[Any]:
        """Return the values of all ranks on rank 0, in their order, and nothing on the others."""
        return [value]

    def share(self, value: Any) -> Any:
        """Return rank 0's value."""
        return value

    @property
    def description(self) -> str:
        """How the ranks exchange numbers."""
        return "one process"


ALONE = Ranks()


class ConnectedRanks(Ranks):
    """Several processes, connected by torch.distributed.

    Args:
        objects: The process group (gloo) that exchanges Python's values and tensors on the CPU.
        tensors: The process group (NCCL) that exchanges tensors on GPUs; None where they go through the CPU.
    """

    def __init__(self, objects: Any, tensors: Any) -> None:
        import torch.distributed as dist

        self._objects, self._tensors = objects, tensors
        self.rank, self.count = dist.get_rank(objects), dist.get_world_size(objects)
        atexit.register(self.close)

    def close(self) -> None:
        """End the threads that exchange, as every rank does before Python ends.

        A thread that lets go of the last tensor while Python is ending cannot have Python's lock any more: it aborts
        the process.
        """
        import torch.distributed as dist

        groups, self._objects, self._tensors = (self._tensors, self._objects), None, None
        for group in filter(None, groups):
            with suppress(Exception):
                dist.destroy_process_group(group)

    def total(self, x: Tensor) -> Tensor:
        import torch.distributed as dist

        direct = x.is_cuda and self._tensors is not None
        summed = x.detach().clone() if direct else x.detach().to("cpu", copy=True)
        with _explained():
            dist.all_reduce(summed, group=self._tensors if direct else self._objects)
        return summed.to(x.device)

    def gather(self, x: Tensor) -> list[Tensor]:
        import torch
        import torch.distributed as dist

        direct = x.is_cuda and self._tensors is not None
        given = x.detach().contiguous() if direct else x.detach().cpu().contiguous()
        found = [torch.empty_like(given) for _ in range(self.count)]
        with _explained():
            dist.all_gather(found, given, group=self._tensors if direct else self._objects)
        return [part.to(x.device) for part in found]

    def whole(self, rows: Tensor) -> Tensor:
        import torch

        return torch.cat(self.gather(rows))

    def own(self, rows: Tensor) -> Tensor:
        size = len(rows) // self.count
        return rows[self.rank * size : (self.rank + 1) * size]

    def collect(self, value: Any) -> list[Any]:
        import torch.distributed as dist

        found = [None] * self.count if self.rank == 0 else None
        with _explained():
            dist.gather_object(_on_cpu(value), found, dst=0, group=self._objects)
        return found or []

    def share(self, value: Any) -> Any:
        import torch.distributed as dist

        box = [value]
        with _explained():
            dist.broadcast_object_list(box, src=0, group=self._objects)
        return box[0]

    @property
    def description(self) -> str:
        return f"{self.count} processes ({'gloo' if self._tensors is None else 'nccl'})"


def own_device(name: str) -> str:
    """Return the device of this process: for "auto" and "cuda" a GPU of its own, as far as there are enough of them."""
    import torch
    import torch.distributed as dist

    if str(name) not in ("auto", "cuda") or not _several() or not (gpus := torch.cuda.device_count()):
        return name
    rank = os.environ.get("LOCAL_RANK") or dist.get_rank()
    return f"cuda:{int(rank) % gpus}"


def join(device: torch.device) -> Ranks:
    """Return the ranks that train together with this process; every rank calls this.

    A process is alone unless torchrun started several, or the caller has set up torch.distributed.

    Args:
        device: Where this rank learns.

    Raises:
        ValueError: The ranks are on devices of different types.
    """
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    if not _several():
        return ALONE
    if not dist.is_initialized():
        with _explained():
            store, rank, count = next(rendezvous("env://", timeout=PATIENCE))
            # torchrun may start its processes again with the same store, which still has the addresses of the first.
            attempt = PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
            dist.init_process_group("gloo", store=attempt, rank=rank, world_size=count, timeout=PATIENCE)
        atexit.register(_leave)
    return ALONE if dist.get_world_size() == 1 else _connect(device)


def _several() -> bool:
    import torch.distributed as dist

    return dist.is_available() and (dist.is_initialized() or launched())


def _connect(device: torch.device) -> Ranks:
    import torch
    import torch.distributed as dist

    if device.type == "cuda":
        torch.cuda.set_device(device)
    with _explained():
        objects = dist.new_group(backend="gloo", timeout=PATIENCE)
        places: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(places, (platform.node(), device.type, device.index), group=objects)
        kinds = sorted({kind for _, kind, _ in places})
        if len(kinds) > 1:
            raise ValueError(f"device: must be of one type in all processes of a run, got {' and '.join(kinds)}.")
        # NCCL refuses two ranks on one GPU. All ranks see the same places, so all of them decide alike.
        each_its_own = device.type == "cuda" and len(set(places)) == len(places)
        nccl = each_its_own and dist.is_nccl_available()
        return ConnectedRanks(objects, dist.new_group(backend="nccl", timeout=PATIENCE) if nccl else None)


def _on_cpu(value: Any) -> Any:
    """Return a state with its tensors on the CPU: another rank may not have, or not want, this one's GPU."""
    if type(value) is dict:
        return {key: _on_cpu(part) for key, part in value.items()}
    if type(value) is list:
        return [_on_cpu(part) for part in value]
    return value.cpu() if hasattr(value, "cpu") else value


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        # gloo begins with a place in its source, and ends with advice for programmers.
        reason = re.sub(r"^\[\S*\] ", "", str(error)).strip().split(". ")[0].splitlines()
        raise RankLostError(
            f"ranks: another process of this run has ended or cannot be reached ({''.join(reason[:1])}); the last "
            "checkpoint is as it was. Resume the run with all its processes."
        ) from error


def _leave() -> None:
    import torch.distributed as dist

    with suppress(Exception):
        dist.destroy_process_group()
