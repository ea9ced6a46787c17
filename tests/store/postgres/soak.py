"""The long version of `test_kills.py`, with one summary in JSON.

python -m store.postgres.soak --kills 200    so many of the client, and of the server (with PYTHONPATH=tests)
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict

from helpers import postgres_server
from store.faults.killing import random_kills
from store.postgres.killing import ClientKills, ServerKills


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    asked = parser.parse_args()
    result = {"seed": asked.seed}
    for what in ("client", "server"):
        server = postgres_server.Server()
        try:
            with tempfile.TemporaryDirectory() as folder:
                if what == "client":
                    campaign = ClientKills(folder, server, asked.seed, free_repeats=False)
                    while campaign.kills < asked.kills:
                        random_kills(campaign, min(10, asked.kills - campaign.kills))
                        _say(what, campaign)
                else:
                    campaign = ServerKills(server, asked.seed, free_repeats=False)
                    while campaign.kills < asked.kills:
                        campaign.kill("backends" if campaign.kills % 2 else "immediate stop")
                        _say(what, campaign)
        finally:
            server.close()
        result[what] = {
            "kills": campaign.kills,
            "answered": len(campaign.law.answered),
            **asdict(campaign.found),
            "broken": campaign.found.total,
        }
    print(json.dumps(result, indent=1))
    sys.exit("the law was broken" if any(result[what]["broken"] for what in ("client", "server")) else 0)


def _say(what, campaign):
    print(f"  {what}: {campaign.kills} kills, {campaign.found.total} findings", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
