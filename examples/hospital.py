"""A hospital-like table with several visits per patient: numbers, categories, dates and gaps.

    pip install '.[store,tables]' pandas
    python examples/hospital.py

The schema is made from a public sample. Private visits go into a store. Each patient has one budget, for all their
visits together. Then questions are answered, and one patient is forgotten.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from indknn.settings import Settings
from indknn.store import Store
from indknn.tables import infer
from indknn.tables.schema import to_plain


def visits(n, rng):
    """Made-up visits: older smokers with high blood pressure come back more often."""
    age, smoker = rng.integers(18, 95, n), rng.random(n) < 0.3
    pressure = rng.normal(120, 18, n) + 0.3 * (age - 50)
    risk = 0.05 * (age - 60) + 1.5 * smoker + 0.05 * (pressure - 130)
    returns = np.where(risk + rng.logistic(size=n) * 0.5 > 0.5, "returns", "stays away")
    pressure[rng.random(n) < 0.1] = np.nan  # not measured
    return pd.DataFrame(
        {
            "patient": [f"patient-{i}" for i in rng.integers(max(n // 3, 1), size=n)],
            "admitted": pd.Timestamp("2025-01-01") + pd.to_timedelta(rng.integers(365, size=n), unit="D"),
            "age": age,
            "pressure": pressure.round(1),
            "ward": rng.choice(["surgery", "medicine", "emergency"], n, p=[0.3, 0.5, 0.2]),
            "smoker": np.where(smoker, "yes", "no"),
            "outcome": returns,
        }
    )


def main(arguments=None):
    """Answer questions about visits, and forget a patient. Returns the share of right answers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--visits", type=int, default=20_000)
    parser.add_argument("--questions", type=int, default=500)
    chosen = parser.parse_args(arguments)
    rng = np.random.default_rng(0)
    public, private, questions = (visits(n, rng) for n in (1000, chosen.visits, chosen.questions))

    found = infer(public, label="outcome", owner="patient")
    for note in found.notes:
        print("note:", note)
    schema = found.schema
    settings = Settings(schema.n_features, schema.classes, epsilon=1.0, schema=to_plain(schema))
    with tempfile.TemporaryDirectory() as folder, Store.create(Path(folder) / "hospital.store", settings) as store:
        store.add(private)  # labels and patients are columns of the table
        print(f"{len(private):,} visits of {private['patient'].nunique():,} patients")

        answers = store.predict(questions.drop(columns=["outcome", "patient"]))
        right = float(np.mean(answers == questions["outcome"].to_numpy()))
        print(f"{right:.0%} of {len(answers):,} private answers are right")

        somebody = private["patient"].iloc[0]
        receipt = store.forget([somebody])
        print(f"forgotten: {somebody}, {receipt['records']} visits")
    return right


if __name__ == "__main__":
    main()
