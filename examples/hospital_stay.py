"""How long patients stay in a hospital: a number, records that expire, and patients with a smaller promise.

    pip install '.[store,tables]' pandas
    python examples/hospital_stay.py

Stays go into a store with epsilon = 1. Some patients were promised .25. A stay takes part for at most 400 days, and a
patient may want it erased earlier. Then questions are answered, a year and more goes by, and nobody has to do anything.
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from indknn.core import clock
from indknn.ledger.figures import statement
from indknn.settings import Settings
from indknn.store import Store
from indknn.store.reports import status
from indknn.tables import infer
from indknn.tables.schema import to_plain

DAY = 86_400


def stays(n, rng):
    """Made-up stays: older patients and emergencies stay longer. One in five patients wants a smaller promise."""
    age, ward = rng.integers(18, 95, n), rng.choice(["surgery", "medicine", "emergency"], n)
    days = 2 + 0.07 * age + 3 * (ward == "emergency") + rng.normal(0, 1.2, n)
    patients = rng.integers(max(n // 2, 1), size=n)
    until = pd.Timestamp(clock.seconds(), unit="s").floor("D") + pd.to_timedelta(rng.integers(30, 700, n), unit="D")
    return pd.DataFrame(
        {
            "patient": [f"patient-{i}" for i in patients],
            "age": age,
            "ward": ward,
            "days": np.clip(days, 0.5, 30).round(1),
            "promised": np.where(patients % 5 == 0, 0.25, np.nan),
            "erase_on": until.where(rng.random(n) < 0.3),  # the others have no date of their own
        }
    )


def r_squared(answers, truth):
    """The share of the variance that the answers explain."""
    return 1 - float(np.mean((answers - truth) ** 2) / np.var(truth))


def main(arguments=None):
    """Answer questions about stays, before and after most of them have expired. Returns R² before."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stays", type=int, default=20_000)
    parser.add_argument("--questions", type=int, default=500)
    chosen = parser.parse_args(arguments)
    rng = np.random.default_rng(0)
    public, private, questions = (stays(n, rng) for n in (1000, chosen.stays, chosen.questions))

    roles = {"label": "days", "owner": "patient", "epsilon": "promised", "expires": "erase_on"}
    schema = replace(infer(public, **roles, target="number").schema, bounds=(0, 30))
    settings = Settings(
        schema.n_features, (), epsilon=1.0, target="number", bounds=(0, 30), keep_days=400, schema=to_plain(schema)
    )
    with tempfile.TemporaryDirectory() as folder, Store.create(Path(folder) / "stays.store", settings) as store:
        store.add(private)  # numbers, patients, promises and dates are columns of the table
        asked = questions[["age", "ward"]]
        found = r_squared(store.predict(asked), questions["days"].to_numpy())
        print(f"{len(private):,} stays of {private['patient'].nunique():,} patients: R² = {found:.2f}")

        careful = private["patient"][private["promised"].notna()].iloc[0]
        told = statement(store.engine, careful)["one_analyst"]
        print(f"{careful} was promised {told['epsilon']:g}, epsilon so far {told['epsilon_so_far']:.3f}")

        ahead = status(store)["retention"]
        print(f"about {ahead['month']:,} stays expire within a month, {ahead['year']:,} within a year")
        store.hold([careful])
        clock.seconds = lambda: time.time() + 401 * DAY  # the example does not wait
        erased = store.expire()
        print(f"401 days later: {erased:,} stays erased; kept under a hold: {len(store.engine.shard)}")
        receipt = store.release_hold([careful])
        print(f"the hold of {careful} has ended: {receipt['records']} stays erased")
        clock.seconds = time.time
    return found


if __name__ == "__main__":
    main()
