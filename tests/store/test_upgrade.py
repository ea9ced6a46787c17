"""Store files that earlier versions wrote: they open, check out, answer as before, and give nothing back."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

import indknn
from indknn.store.verify import problems
from store.upgrade.make import FORGOTTEN, QUESTIONS, RECORDS, rows

FILES = Path(__file__).parent / "upgrade"
NAMES = sorted(path.name.removesuffix(".store.gz") for path in FILES.glob("*.store.gz"))


def test_both_ways_to_answer_are_there():
    assert {"version-5-votes"} <= set(NAMES)


@pytest.fixture(params=NAMES)
def old(request, tmp_path):
    """The path of a store file as it was, and what its program knew of it."""
    path = tmp_path / "old.store"
    path.write_bytes(gzip.decompress((FILES / f"{request.param}.store.gz").read_bytes()))
    path.chmod(0o600)
    return path, json.loads((FILES / f"{request.param}.json").read_text())


def test_an_old_store_answers_as_before_and_charges_nobody_for_it(old):
    path, known = old
    Q, _ = rows(QUESTIONS, 2)
    owners = list(known["spent"])
    with indknn.open(path) as store:
        assert list(problems(store)) == []
        assert len(store.engine.shard.slots()) == known["records"] == RECORDS - 2 * len(FORGOTTEN)
        for _ in range(2):  # by the ids of the requests, then as queries that were asked before
            for who, answers in known["answers"].items():
                assert store.predict(Q, who, request_id=f"{who}-1").tolist() == answers
                assert store.predict(Q, who).tolist() == answers
        assert store.predict_proba(Q[:5], "alice", request_id="alice-2").tolist() == known["likely"]
        assert store.spent(owners).tolist() == list(known["spent"].values())


def test_an_old_store_goes_on_and_refunds_nothing(old):
    path, known = old
    X, y = rows(40, 5)
    with indknn.open(path) as store:
        store.add(X, y, [*FORGOTTEN, *(f"new-{i}" for i in range(37))])
        assert store.spent(FORGOTTEN).tolist() == [known["spent"][name] for name in FORGOTTEN]
        answers = store.predict(rows(50, 6)[0], "carol")
        assert set(answers) <= {"healthy", "ill"}
        assert np.all(store.spent(FORGOTTEN) >= [known["spent"][name] for name in FORGOTTEN])
        store.forget(FORGOTTEN[:1])
    with indknn.open(path) as store:
        assert list(problems(store)) == []
