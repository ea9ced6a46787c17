"""Random histories in two worlds for as long as you like, and a summary in JSON.

    python -m coupled.soak --histories 2000        (with PYTHONPATH=tests)

The control is the same on broken variants of the product. All of them must be caught, or the rest proves nothing.
"""

import argparse
import json
import os
import sys
import time
import warnings
from collections import Counter
from itertools import count, cycle, islice, product
from multiprocessing import get_context

from coupled.histories import INDEXES, MODES, random_history
from coupled.mutants import CAUGHT, first_finding
from coupled.roads import ROADS
from coupled.tape import ALL, Divergence
from coupled.worlds import couple, smallest


def described(history, finding, only):
    """A finding that somebody can repeat."""
    about = "" if only is ALL else f", the view of {only}"
    head = [finding, f"road {history.road}, seed {history.seed}, small {history.small}{about}", history.settings]
    return "\n  ".join(map(str, [*head, *history.events]))


def coupled(job):
    """What a history reached, and what was found in it if the worlds diverge."""
    kind, events, only = job
    warnings.simplefilter("ignore")
    only = ALL if only is None else only
    history = random_history(*kind, events=events, apart=only is not ALL)
    try:
        tape = couple(history, only)
    except Divergence:
        return None, described(*smallest(history, only), only)
    reached = Counter(release.kind for release in tape.releases)
    reached["answered by models alone"] += tape.alone
    reached["histories that cost the target something"] += any(tape.cost.values())
    return reached, None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--events", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    asked = parser.parse_args()
    start, found, reached = time.monotonic(), [], Counter()
    kinds = ((seed, *kind) for seed in count(asked.seed) for kind in product(ROADS, MODES, INDEXES))
    observers = cycle((None, "ann", None, None, None, "eve", None))  # about every third time the view of one analyst
    jobs = ((kind, asked.events, only) for kind, only in zip(kinds, observers, strict=False))
    with get_context("spawn").Pool(asked.processes, maxtasksperchild=500) as pool:
        for done, (part, finding) in enumerate(pool.imap_unordered(coupled, islice(jobs, asked.histories)), 1):
            reached.update(part or {})
            if finding:
                found.append(finding)
                print(finding, file=sys.stderr, flush=True)
            if not done % 100:
                print(f"  {done} histories, {len(found)} findings", file=sys.stderr, flush=True)
    warnings.simplefilter("ignore")
    missed = [mutant.name for mutant in CAUGHT if first_finding(mutant) is None]
    summary = {"histories": asked.histories, "findings": len(found), "mutants_caught": len(CAUGHT) - len(missed)}
    summary |= {"mutants_missed": missed, "reached": dict(reached)}
    print(json.dumps({**summary, "seed": asked.seed, "seconds": round(time.monotonic() - start)}, indent=2))
    if found or missed:
        sys.exit("the worlds diverge" if found else "a broken variant was not caught: this harness does not bite")


if __name__ == "__main__":
    main()
