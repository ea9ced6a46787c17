"""Compares the speed of the search with faiss, scikit-learn, NumPy and a plain read of memory.

python benchmarks/scan.py [--quick] [--only single,batch,...] [--out out/bench]
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before faiss is loaded: idle threads must not spin

from measure import machine
from report import Row, table, write
from sections import BATCH, growth, index_map, side_by_side
from upkeep import private_query, updates

SIZES = [(50_000, 384), (50_000, 768), (200_000, 384), (1_000_000, 384)]
GROWTH = [10_000, 30_000, 100_000, 300_000, 1_000_000, 2_000_000]
MAP = [(50_000, 384), (50_000, 768), (200_000, 384), (1_000_000, 128), (1_000_000, 384)]
SHARES = [0.001, 0.005, 0.02, 0.1]


def sections(*, quick: bool) -> dict[str, Callable[[], list[Row]]]:
    if quick:
        return {
            "single": lambda: side_by_side([(20_000, 384)], 1, 3),
            "batch": lambda: side_by_side([(20_000, 384)], BATCH, 3),
            "growth": lambda: growth([2_000, 20_000], 384, 3),
            "map": lambda: index_map([(20_000, 384)], [0.02], 3),
            "updates": lambda: updates([20_000], 384),
            "private query": lambda: private_query(20_000, 384, 3),
        }
    return {
        "single": lambda: side_by_side(SIZES, 1, 15),
        "batch": lambda: side_by_side(SIZES[:3], BATCH, 5),
        "growth": lambda: growth(GROWTH, 384, 7),
        "map": lambda: index_map(MAP, SHARES, 5),
        "updates": lambda: updates([10_000, 100_000, 1_000_000], 384),
        "private query": lambda: private_query(50_000, 768, 9),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: half a minute, rough figures")
    parser.add_argument("--only", help="comma-separated sections")
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    args = parser.parse_args()
    chosen = sections(quick=args.quick)
    if args.only:
        wanted = args.only.split(",")
        unknown = sorted(set(wanted) - set(chosen))
        if unknown:
            parser.error(f"--only takes {', '.join(chosen)}; got {', '.join(unknown)}")
        chosen = {name: chosen[name] for name in wanted}
    about = machine()
    print(", ".join(f"{key}: {value}" for key, value in about.items()))
    results = {}
    for name, run in chosen.items():
        results[name] = run()
        print(f"\n{name}\n" + "\n".join(table(results[name])), flush=True)
        write(args.out, results, about)  # after every section, so that an interrupted run leaves something
    print(f"\nwritten to {args.out}")


if __name__ == "__main__":
    main()
