"""Kill -9 through HTTP, a hundred times: what a client was told is charged, and asking again gives the same.

python -m server.soak --kills 100        (with PYTHONPATH=tests); ends with a summary in JSON
"""

import argparse
import json
import random
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from server.killing import ENDLESS, Campaign

KILLS_PER_STORE = 25


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    asked = parser.parse_args()
    rng, start, done = random.Random(asked.seed), time.monotonic(), 0
    total = {"kills": 0, "requests_answered": 0, "ids_asked_again": 0}
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        while done < asked.kills:
            home = Path(folder) / str(done)
            home.mkdir()
            mode = ENDLESS if len(list(Path(folder).iterdir())) % 2 == 0 else {}  # every second store
            campaign = Campaign(home, rng.getrandbits(30), verify=True, **mode)
            while campaign.kills < KILLS_PER_STORE and done < asked.kills:
                campaign.round(rng.uniform(0.05, 1.0))
                done += 1
            part = {
                "kills": campaign.kills,
                "requests_answered": len(campaign.told),
                "ids_asked_again": campaign.retries,
                **asdict(campaign.found),
            }
            total = {name: total.get(name, 0) + value for name, value in part.items()}
            print(f"  {total}", file=sys.stderr, flush=True)
    total["seconds"], total["seed"] = round(time.monotonic() - start), asked.seed
    print(json.dumps(total, indent=2))
    if sum(value for name, value in total.items() if name in asdict(campaign.found)):
        sys.exit("the law was broken")
    if not (total["requests_answered"] and total["ids_asked_again"]):
        sys.exit("nothing was answered: this proves nothing")


if __name__ == "__main__":
    main()
