"""The long version of `test_kills.py`, with one summary in JSON.

python -m cluster.soak --kills 200    so many of shards, of stopped shards and of the coordinator (with PYTHONPATH=tests)
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from dataclasses import asdict

from cluster.killing import CoordinatorKills, ShardKills
from store.faults.killing import random_kills


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    asked = parser.parse_args()
    result = {"seed": asked.seed}
    for what, sign in (("shard", signal.SIGKILL), ("stopped shard", signal.SIGSTOP)):
        with tempfile.TemporaryDirectory() as folder, ShardKills(folder, asked.seed, free_repeats=False) as campaign:
            while campaign.kills < asked.kills:
                campaign.kill(sign)
                _say(what, campaign)
        result[what] = _summary(campaign)
    with tempfile.TemporaryDirectory() as folder:
        campaign = CoordinatorKills(folder, asked.seed, free_repeats=False)
        while campaign.kills < asked.kills:
            random_kills(campaign, min(10, asked.kills - campaign.kills))
            _say("coordinator", campaign)
        result["coordinator"] = _summary(campaign)
    print(json.dumps(result, indent=1))
    sys.exit("the law was broken" if any(part["broken"] for part in result.values() if isinstance(part, dict)) else 0)


def _summary(campaign):
    return {
        "kills": campaign.kills,
        "answered": len(campaign.law.answered),
        **asdict(campaign.found),
        "broken": campaign.found.total,
    }


def _say(what, campaign):
    print(f"  {what}: {campaign.kills} kills, {campaign.found.total} findings", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
