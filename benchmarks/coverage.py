"""Simulate how often the 95% interval of the mean of a few seeds holds the true mean.

    python -m benchmarks.coverage --out benchmarks/results/coverage.json

Returns of a seed are drawn from a normal distribution, from a skewed one (gamma with shape 4), and from one where a
seed in five fails: 0.2 N(0, 0.1) + 0.8 N(1, 0.1). Of the last, no interval of three seeds can know: half of the time
all three have succeeded.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from minerva.report.statistics import mean_interval

Draw = Callable[[Generator, tuple[int, int]], NDArray[np.float64]]
RETURNS: dict[str, tuple[float, Draw]] = {  # the true mean, and how to draw returns
    "normal": (0.0, lambda rng, shape: rng.normal(size=shape)),
    "gamma": (4.0, lambda rng, shape: rng.gamma(4.0, size=shape)),
    "failing": (0.8, lambda rng, shape: (rng.random(shape) > 0.2) + 0.1 * rng.normal(size=shape)),
}


def coverage(returns: str, seeds: int, simulations: int) -> float:
    """Return the share of simulations in which the interval holds the true mean."""
    mean, draw = RETURNS[returns]
    low, high = mean_interval(draw(np.random.default_rng(seeds), (seeds, simulations)))
    return float(np.mean((low <= mean) & (mean <= high)))


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(words)
    found = {
        name: {str(seeds): round(coverage(name, seeds, options.simulations), 4) for seeds in (3, 5, 10)}
        for name in RETURNS
    }
    options.out.write_text(json.dumps({"simulations": options.simulations, "coverage": found}, indent=2) + "\n")
    for name, shares in found.items():
        print(f"{name:8}", "  ".join(f"{seeds} seeds {share:.1%}" for seeds, share in shares.items()))


if __name__ == "__main__":
    main()
