"""Measures the time of a draw of exact noise, compared with NumPy's inexact normal and with reading the entropy.

python benchmarks/noise.py [--draws N]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

from indknn.core.noise import SecureNoise, SeededNoise

CLASSES = 10


def microseconds(call: Callable[[], object], draws: int, repeats: int = 7) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) / draws * 1e6)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=20_000)
    draws = parser.parse_args().draws
    secure, seeded, scale = SecureNoise(), SeededNoise(0), 1 << 21
    queries = draws // (CLASSES + 1)
    rows = {
        "exact, system entropy, one call": microseconds(lambda: secure.draw(scale, draws), draws),
        "exact, as a query does (1 + 10 draws)": microseconds(
            lambda: [(secure.draw(scale, 1), secure.draw(scale, CLASSES)) for _ in range(queries)], draws
        ),
        "seeded twin, as a query does": microseconds(
            lambda: [(seeded.draw(scale, 1), seeded.draw(scale, CLASSES)) for _ in range(queries)], draws
        ),
        "1 KiB of system entropy per 11 draws": microseconds(lambda: [os.urandom(1024) for _ in range(queries)], draws),
    }
    base = rows["exact, system entropy, one call"]
    for name, value in rows.items():
        print(f"{name:<40}{value:8.2f} us/draw{value / base:8.2f}x")


if __name__ == "__main__":
    main()
