"""Many faults on the test bed of hosts, with one summary in JSON.

python -m cluster.hosts.soak --faults 1000        (with PYTHONPATH=tests; needs root)
"""

import argparse
import json
import sys
import time
from dataclasses import asdict

from cluster.hosts import network
from cluster.hosts.bed import Bed
from cluster.hosts.campaign import Campaign
from server.killing import ENDLESS

PER_STORE = 100
"""Faults before the next store. Every second one has the default mode, the others Algorithm 3."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=600.0, help="stop after so long, and say how far it came")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    asked = parser.parse_args()
    if (why := network.why_not()) is not None:
        sys.exit(f"skipped: {why}")
    start, total, kinds, beds = time.monotonic(), {"faults": 0}, {}, 0
    over = lambda: total["faults"] >= asked.faults or time.monotonic() - start > 60 * asked.minutes  # noqa: E731
    while not over():
        beds += 1
        settings = {} if beds % 2 else ENDLESS
        with Bed() as bed, Campaign(bed, asked.seed + beds, **settings) as campaign:
            before, lost = dict(total), False
            for done in range(1, PER_STORE + 1):
                try:
                    campaign.any_fault()
                except AssertionError as error:  # Ray or the service did not start, so there must be another bed
                    print(f"  given up: {str(error)[-300:]}", file=sys.stderr, flush=True)
                    lost = True
                if lost or done % 10 == 0 or over():
                    campaign.look()
                    total = {**before, **_added(before, {**_figures(campaign, done), "beds_lost": int(lost)})}
                    print(f"  {round(time.monotonic() - start)} s: {total}", file=sys.stderr, flush=True)
                if lost or over():
                    break
        kinds = _added(kinds, campaign.faults)
    result = {**total, "by_kind": kinds, "seconds": round(time.monotonic() - start), "seed": asked.seed}
    print(json.dumps(result, indent=1))
    broken = sum(total[name] for name in asdict(campaign.found))
    sys.exit("the law was broken" if broken else "nothing was answered" if not total["answered"] else 0)


def _figures(campaign, done):
    return {
        "faults": done,
        "answered": len(campaign.told),
        "replayed": campaign.retries,
        "refused": sum(n for status, n in campaign.statuses.items() if status != 200),
        "stuck": campaign.stuck,
        "checks": campaign.checks,
        **asdict(campaign.found),
    }


def _added(one, other):
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


if __name__ == "__main__":
    main()
