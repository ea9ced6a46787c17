"""After a forget no byte of the name or of the features is in any file of the store."""

import random

import numpy as np
import pytest

from indknn.core.quantise import quantise
from indknn.store import Store
from indknn.store.verify import problems
from store.faults import law, points
from store.faults.killing import Campaign


def marks(name, features):
    """The name, and pieces of the features: what is left of an overwritten cell may be a part."""
    values = quantise(features[None]).values.tobytes()
    return [name.encode(), *(values[i : i + 12] for i in range(0, len(values) - 11, max(12, len(values) // 20)))]


@pytest.mark.parametrize(("seed", "d"), [(0, 24), (1, 24), (2, 24), (3, 384), (4, 6000)])
def test_no_trace_is_left_however_people_come_and_go(tmp_path, seed, d):
    """Slots are freed and taken again, pages fill and empty: nothing may be moved and left behind."""
    law.no_ballast()
    rng, path = random.Random(seed), tmp_path / "a.store"
    held, number = {}, 0
    with Store.create(path, law.settings(n_features=d, max_queries=100)) as store:
        for _ in range(40 if d < 1000 else 10):
            names = [f"person-{seed}-{number + i}-" + "x" * rng.randint(0, 40) for i in range(rng.randint(1, 60))]
            number += len(names)
            X = np.random.default_rng(number).normal(size=(len(names), d))
            store.add(X, ["a"] * len(names), names)
            held.update(zip(names, X, strict=True))
            store.predict(X[:1] + 1.0)
            gone = rng.sample(sorted(held), min(len(held), rng.randint(1, 45)))
            store.forget(gone)
            text = b"".join(law.body_of(path.with_name(path.name + end)) for end in law.SIDE_FILES)
            assert not [name for name in gone for mark in marks(name, held.pop(name)) if mark in text]
        assert all(sum(mark in text for mark in marks(name, held[name])) > 1 for name in held)  # the scan can see
        assert not list(problems(store))
    with Store(path) as store:
        assert not list(problems(store))
        assert sorted(store.engine.ledger.owners()) == sorted(held)


def test_one_record_of_several_goes_without_a_trace(tmp_path):
    law.no_ballast()
    path = tmp_path / "a.store"
    with Store.create(path, law.settings()) as store:
        X = law.rows("ann", 3)
        ids = store.add(X, ["a"] * 3, ["ann"] * 3)
        assert store.forget(records=ids[1:2].tolist())["records"] == 1
        text = b"".join(law.body_of(path.with_name(path.name + end)) for end in law.SIDE_FILES)
        shown = [row.tobytes() in text for row in quantise(X).values]
        assert shown == [True, False, True]
        assert b"ann" in text


POINTS = [p for p in points.POINTS if "log" in p or "tombstone" in p or "clearing" in p or "fold" in p]


@pytest.mark.parametrize("point", POINTS)
def test_killed_in_a_forget_and_asked_again(tmp_path, point):
    campaign = Campaign(tmp_path, seed=3)
    assert campaign.kill_at(point, 1)
    campaign.kill_after(20)
    assert campaign.found == law.Findings()


def test_the_receipt_tells_what_was_done_and_the_trail_agrees(tmp_path):
    law.no_ballast()
    names = law.new_store(tmp_path / "a.store")
    with Store(tmp_path / "a.store") as store:
        receipt = store.forget(names[:2])
        assert (receipt["records"], receipt["owners_forgotten"]) == (2, 2)
        found = store.db.execute("SELECT hash FROM audit ORDER BY position DESC LIMIT 1").get
        assert found.hex() == receipt["audit_hash"]
        trail = " ".join(body for (body,) in store.db.execute("SELECT body FROM audit"))
        assert not any(name in trail for name in names)
