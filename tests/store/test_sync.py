"""A store in step with a table: what is new is added, what changed is replaced, and what is missing goes if asked."""

import csv
import json

import numpy as np
import pytest

from conftest import blobs
from helpers.commands import run
from indknn import InvalidInputError
from indknn.settings import Settings
from indknn.store import Store, chain
from indknn.store.change import Synced
from indknn.store.verify import problems

X, Y = blobs(400, 3, 5, seed=3)
SETTINGS = Settings(n_features=5, classes=(0, 1, 2), tau=0.3, sigma2=0.6, max_queries=60, reuse="none")
PEOPLE = np.array([f"p{i // 2}" for i in range(20)])
IDS = np.array([f"v{i}" for i in range(20)])


@pytest.fixture
def store(tmp_path):
    with Store.create(tmp_path / "people.store", SETTINGS) as made:
        made.sync(X[:20], Y[:20], PEOPLE, IDS)
        made.predict(X[100:140])
        yield made


def everything(store):
    """All that a sync could change, with the audit trail. A database notes there that a sync was undone."""
    shard = store.engine.shard
    kinds = [entry.kind for entry in chain.entries(store.db) if entry.kind != "undone"]
    return store.engine.ledger.owners(), store.spent().tolist(), shard.record_ids().tolist(), kinds


def test_rows_are_added_replaced_left_alone_and_forgotten_in_one_step(store):
    people = [f"p{i}" for i in range(10)]
    spent = dict(zip(people, store.spent(people).tolist(), strict=True))
    assert min(spent.values()) > 0
    before = store.engine.shard.record_ids()
    rows = X[:20].copy()
    rows[4] = X[300]  # a visit of p2 has changed
    kept = [i for i in range(20) if i not in {6, 8, 9}]  # one visit of p3 is gone, and both of p4
    table = np.concatenate([rows[kept], X[20:22]]), np.concatenate([Y[:20][kept], Y[20:22]])
    owners, ids = [*PEOPLE[kept], "p3", "new"], [*IDS[kept], "v20", "v21"]
    assert store.sync(*table, owners, ids) == Synced(2, 1, 16, 3, 0)
    assert len(store.engine.shard) == 22  # nothing goes unless it is asked for
    assert store.sync(*table, owners, ids, delete_missing=True) == Synced(0, 0, 19, 3, 0)
    assert len(store.engine.shard) == 19
    assert set(store.engine.ledger.owners()) == {*people, "new"} - {"p4"}
    assert {name: store.spent([name])[0] for name in people} == spent  # p4's too: nothing is given back
    assert store.spent(["new"]) == 0
    assert len(np.intersect1d(before, store.engine.shard.record_ids())) == 16
    after = everything(store)
    assert store.sync(*table, owners, ids, delete_missing=True) == Synced(0, 0, 19, 0, 0)
    assert everything(store) == after
    assert not list(problems(store))
    store.sync(X[:20], Y[:20], PEOPLE, IDS)  # everybody back, who has spent what they had spent
    assert {name: store.spent([name])[0] for name in people} == spent


def test_a_person_whose_only_record_is_replaced_by_another_keeps_everything(store):
    spent = store.spent(["p0"])
    store.sync(X[30:31], Y[30:31], ["p0"], ["other"], delete_missing=True)
    assert store.engine.ledger.owners() == ["p0"]
    assert store.spent(["p0"]) == spent
    kinds = [entry.body for entry in chain.entries(store.db) if entry.kind == "forget"]
    assert json.loads(kinds[-1])["owners"] == 9


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            {"owners": [*PEOPLE[:19], "p0"]},
            "'v19' belongs to another owner than 'p0': a record never changes its owner",
        ),
        ({"owners": [*PEOPLE[:19], "eve"]}, "'v19' belongs to another owner than 'eve'"),
        ({"ids": None}, "sync needs the record id of every row"),
        ({"ids": [*IDS[:19], "v0"]}, "record id 'v0' must not be given twice"),
        ({"owners": "each-row"}, "sync needs the name of every owner"),
        ({"owners": None}, "a store needs the owner of every row"),
        ({"X": np.full((20, 5), np.nan)}, "NaN"),
        ({"X": X[:0], "y": Y[:0], "owners": [], "ids": []}, "has no rows, so all records would be forgotten"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_changed(store, change, complaint):
    rows = {"X": X[20:40], "y": Y[20:40], "owners": PEOPLE, "ids": IDS, **change}
    before = everything(store)
    with pytest.raises(InvalidInputError, match=complaint):
        store.sync(*rows.values(), delete_missing=True)
    assert everything(store) == before


def test_a_wrong_row_far_down_changes_nothing(store):
    before = everything(store)
    batches = [(X[20:30], Y[20:30], PEOPLE[:10], IDS[:10]), (X[30:40], Y[30:40], PEOPLE[9::-1], IDS[10:])]
    with pytest.raises(InvalidInputError, match="belongs to another owner"):
        store.sync_batches(batches, delete_missing=True)
    assert everything(store) == before
    with pytest.raises(InvalidInputError, match="a record id must not be given twice"):
        store.sync_batches([batches[0], batches[0]])
    assert everything(store) == before


def test_nothing_is_changed_without_agreement(store):
    before, seen = everything(store), []
    batch = [(X[1:21], Y[1:21], [*PEOPLE[1:], "new"], [*IDS[1:], "v20"])]
    told = store.sync_batches(batch, delete_missing=True, agreed=seen.append)
    assert seen == [told] == [Synced(1, 0, 19, 1, 0)]
    assert everything(store) == before
    assert not list(problems(store))


def test_records_without_an_id_stay(store):
    store.add(X[50:53], Y[50:53], ["p0", "ann", "ann"])
    assert store.sync(X[:2], Y[:2], PEOPLE[:2], IDS[:2], delete_missing=True) == Synced(0, 0, 2, 18, 3)
    assert len(store.engine.shard) == 5


# From the command line


@pytest.fixture
def table(tmp_path):
    """Writes the rows of a table to a file, and returns the file."""

    def write(rows, name="visits.csv", changed=()):
        with (tmp_path / name).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["visit", "patient", *"abcde", "ill"])
            writer.writerows(
                [f"v{i}", f"p{i // 2}", *(X[i + 100 if i in changed else i]), "yes" if Y[i] else "no"] for i in rows
            )
        return tmp_path / name

    return write


NAMES = ("--label", "ill", "--owner", "patient", "--record-id", "visit")


def facts(*words, **options):
    return json.loads(run(*words, *NAMES, "--json", code=0, **options).stdout)


def test_a_nightly_refresh(tmp_path, table):
    store = tmp_path / "s.store"
    run("init", store, "--tau", 0.4, "--max-queries", 60, "--mode", "votes", "--classes", "no,yes", code=0)
    first = facts("sync", store, table(range(40)))
    assert first == {
        "added": 40,
        "replaced": 0,
        "unchanged": 0,
        "missing": 0,
        "nameless": 0,
        "forgotten": 0,
        "records": 40,
        "owners": 20,
    }
    monday = table(range(38), changed={3, 4})
    declined = run("sync", store, monday, *NAMES, "--delete-missing", given="n\n")
    assert declined.exit_code == 1
    assert "added 0, replaced 2, unchanged 36, missing 2. The missing records are forgotten." in declined.stderr
    assert facts("sync", store, table(range(40)))["unchanged"] == 40  # nothing had been changed
    done = run("sync", store, table(range(38), changed={3, 4}), *NAMES, "--delete-missing", given="y\n", code=0)
    assert "added 0, replaced 2, unchanged 36, missing 2, forgotten; now 38 records of 19 people" in done.stdout
    for _ in range(2):
        again = facts("sync", store, monday, "--delete-missing", "--yes")
        assert (again["unchanged"], again["forgotten"], again["records"]) == (38, 0, 38)
    added = facts("add", store, table(range(39), changed={3, 5}))
    assert [added[name] for name in ("added", "replaced", "unchanged")] == [1, 2, 36]
    assert "replaced 1, unchanged 38; now 39" in run("add", store, table(range(39), changed={3}), *NAMES).stdout
    assert "all is well" in run("verify", store, code=0).output


def test_a_file_that_changes_while_one_is_asked_changes_nothing(tmp_path, table, monkeypatch):
    store = tmp_path / "s.store"
    run("init", store, "--tau", 0.4, "--classes", "no,yes", code=0)
    facts("sync", store, table(range(40)))
    monkeypatch.setattr("click.confirm", lambda *_, **__: table(range(4)))
    refused = run("sync", store, table(range(38)), *NAMES, "--delete-missing")
    assert refused.exit_code == 2
    assert "has changed since its rows were counted: nothing was changed" in refused.stderr
    assert facts("sync", store, table(range(40)))["unchanged"] == 40


def test_an_export_that_failed_erases_nobody(tmp_path, table):
    store = tmp_path / "s.store"
    run("init", store, "--tau", 0.4, "--classes", "no,yes", code=0)
    facts("sync", store, table(range(40)))
    empty = run("sync", store, table([]), *NAMES, "--delete-missing", "--yes")
    assert (empty.exit_code, empty.stdout) == (2, "")
    assert "has no rows" in empty.stderr
    assert facts("sync", store, table(range(40)))["unchanged"] == 40


def test_people_are_forgotten_by_a_list(tmp_path, table):
    store = tmp_path / "s.store"
    run("init", store, "--tau", 0.4, "--classes", "no,yes", code=0)
    facts("sync", store, table(range(40)))
    (tmp_path / "left.txt").write_bytes(b"\xef\xbb\xbfp1\r\n\np2\n")
    said = run("forget", store, "p0", "--file", tmp_path / "left.txt", "--receipt", tmp_path / "r.json", code=0)
    assert "forgotten: 3 people, 6 records" in said.stdout
    assert json.loads((tmp_path / "r.json").read_text())["owners"] == ["p0", "p1", "p2"]
    rows = table(range(6, 9), "gone.csv")
    missing = run("forget", store, "--file", rows)
    assert "no column 'owner', only visit, patient, a, b, c, d, e, ill; name it by --owner" in missing.stderr
    said = run("forget", store, "--file", rows, "--owner", "patient", code=0)
    assert "forgotten: 2 people, 4 records" in said.stdout  # each is named once, however often they occur
    said = run("forget", store, "--file", rows, "--owner", "patient", code=0)
    assert "forgotten: 0 people, 0 records" in said.stdout
    said = run("forget", store, "--record-id", "v10", "--record-id", "v12", "--record-id", "v13", code=0)
    assert "forgotten: 1 person, 3 records" in said.stdout
    (tmp_path / "wrong.txt").write_text("p8\nnobody\n")
    (tmp_path / "none.txt").write_text("\n")
    (tmp_path / "odd.pdf").write_text("p8")
    for words, complaint in (
        ([], "name whom to forget: OWNER..., --file FILE or --record-id ID"),
        (["--file", tmp_path / "wrong.txt"], "unknown owner 'nobody'"),
        (["--record-id", "v16", "--record-id", "v10"], "unknown record id 'v10'"),
        (["--file", tmp_path / "none.txt"], "names nobody"),
        (["--file", tmp_path / "odd.pdf"], "must be a text file that ends in .txt, or a table"),
    ):
        refused = run("forget", store, *words)
        assert refused.exit_code == 2
        assert complaint in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
    assert json.loads(run("status", store, "--json", code=0).stdout)["records"] == 27
