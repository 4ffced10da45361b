"""Run one measurement: `python -m benchmarks.peers.child MODULE:FUNCTION AMOUNT FIELDS` prints a rate."""

from __future__ import annotations

import importlib
import json
import sys


def main(function: str, amount: str, fields: str) -> None:
    module, name = function.split(":")
    print(float(getattr(importlib.import_module(module), name)(int(amount), **json.loads(fields))))


if __name__ == "__main__":
    main(*sys.argv[1:])
