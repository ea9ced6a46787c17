"""The long version of the fault tests: hundreds of kills, thousands of power cuts, and one summary in JSON.

    make soak                                           at least 500 injected crashes
    python -m store.faults.soak --kills 40 --cuts 200   a short one (with PYTHONPATH=tests)

The control is the same harness on a store that does not sync. It must break the law, or the rest proves nothing.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from store.faults import law, points
from store.faults.killing import Campaign, chosen_kills, random_kills
from store.faults.power import Cuts

KILLS_PER_STORE = 40


def kills(folder, wanted, seed):
    """Kills at random times and at every named point, on one store after another."""
    found, done, answered, missed, campaigns = law.Findings(), 0, 0, [], 0
    while done < wanted:
        campaign = Campaign(folder / f"kill-{campaigns}", seed + campaigns, free_repeats=bool(campaigns % 2))
        campaigns += 1
        missed += chosen_kills(campaign)
        random_kills(campaign, max(0, min(KILLS_PER_STORE, wanted - done) - len(points.POINTS)))
        found += campaign.found
        done += campaign.kills
        answered += len(campaign.law.answered)
        shutil.rmtree(campaign.folder)
        print(f"  {done} kills, {answered} requests answered, {found.total} findings", file=sys.stderr, flush=True)
    return {"injected": done, "requests_answered": answered, "points_not_reached": len(missed), **asdict(found)}


def cuts(folder, wanted, seed, synchronous="FULL"):
    """Power cuts, and kills followed by power cuts, on one history after another."""
    found, images, histories, control = law.Findings(), 0, 0, synchronous != "FULL"
    while images < wanted:
        history = Cuts(folder / f"cut-{histories}", seed + histories, synchronous=synchronous)
        found += history.check(60)
        if not control:
            found += history.check_kill_then_cut(20)
        histories += 1
        images += history.images
        shutil.rmtree(history.folder)
        print(f"  {images} power cuts ({synchronous}), {found.total} findings", file=sys.stderr, flush=True)
    return {"injected": images, "histories": histories, **asdict(found)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--cuts", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    asked = parser.parse_args()
    folder, start = Path(tempfile.mkdtemp(prefix="soak-")), time.monotonic()
    try:
        parts = {
            "kill_9": kills(folder, asked.kills, asked.seed),
            "power_cut": cuts(folder, asked.cuts, asked.seed),
        }
        control = cuts(folder, 180, asked.seed, synchronous="OFF")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    real = list(parts.values())
    summary = {
        "injected": sum(p["injected"] for p in real),
        "answered_but_uncharged": sum(p["uncharged"] for p in real),
        "lost_or_refunded": sum(p["lost"] for p in real),
        "wrong_retries": sum(p["wrong_retries"] for p in real),
        "overspent": sum(p["overspent"] for p in real),
        "traces_of_the_forgotten": sum(p["traces"] for p in real),
        "unreadable": sum(p["unreadable"] for p in real),
        "control_answered_but_uncharged": control["uncharged"],
        "parts": {**parts, "control_without_syncs": control},
        "seed": asked.seed,
        "seconds": round(time.monotonic() - start),
    }
    print(json.dumps(summary, indent=2))
    broken = sum(summary[k] for k in list(summary)[1:7])
    if broken or not control["uncharged"]:
        sys.exit("the law was broken" if broken else "the control kept the law: this harness does not bite")


if __name__ == "__main__":
    main()
