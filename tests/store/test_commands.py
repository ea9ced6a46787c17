"""The store from the command line, as an operator uses it."""

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import blobs
from helpers.commands import run
from indknn.store import Store
from indknn.store.database import VERSION
from indknn.store.filehome import head_path

X, Y = blobs(460, 3, 5, seed=3)


def ok(*words):
    return run(*words, code=0).output


@pytest.fixture
def folder(tmp_path):
    np.savez(tmp_path / "records.npz", X=X[:400], y=Y[:400], owners=np.array([f"p{i // 2}" for i in range(400)]))
    np.savez(tmp_path / "queries.npz", X=X[400:])
    return tmp_path


@pytest.fixture
def store(folder):
    ok("init", folder / "s.store", "--tau", 0.4, "--sigma2", 0.6, "--max-queries", 60, "--mode", "votes")
    ok("add", folder / "s.store", folder / "records.npz")
    return folder / "s.store"


def spent(store):
    return json.loads(ok("owner", store, "p3", "--json"))["together"]["spent"]


def test_from_init_to_verify(folder, store):
    out = folder / "answers.csv"
    ok("predict", store, folder / "queries.npz", "-o", out)
    with out.open() as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["row", "y"]
    assert [row for row, _ in rows[1:]] == [str(i) for i in range(60)]
    answers = [int(label) for _, label in rows[1:]]
    assert len(answers) == 60
    assert set(answers) <= {0, 1, 2}
    before = spent(store)
    assert before > 0
    for name in ("again.csv", "again.npz", "again.parquet"):  # a rerun continues, and pays nothing
        ok("predict", store, folder / "queries.npz", "-o", folder / name)
    assert np.load(folder / "again.npz")["y"].tolist() == answers
    assert pq.read_table(folder / "again.parquet")["y"].to_pylist() == answers
    assert spent(store) == before
    assert "all is well" in ok("verify", store)
    status = json.loads(ok("status", store, "--json"))
    assert (status["records"], status["owners"], status["answers"]) == (400, 200, 60)
    assert "exhausted" in ok("status", store)
    receipt = folder / "receipt.json"
    assert "forgotten: 1 person, 2 records" in ok("forget", store, "p3", "--receipt", receipt)
    assert json.loads(receipt.read_text())["owners"] == ["p3"]
    assert spent(store) == before
    assert "0 records" in ok("owner", store, "p3")
    ok("add", store, folder / "records.npz")
    assert spent(store) == before
    assert json.loads(ok("verify", store, "--json"))["ok"]


def test_analysts_and_exports(folder, store):
    for name in ("alice", "bob"):
        ok("analysts", "add", store, name)
    ok("predict", store, folder / "queries.npz", "-o", folder / "a.npz", "--analyst", "alice")
    ok("predict", store, folder / "queries.npz", "-o", folder / "b.npz", "--analyst", "bob")
    for what, count in (("audit", 5), ("answers", 120), ("spent", 200)):
        ok("export", what, store, "-o", folder / "x.jsonl")
        lines = [json.loads(line) for line in (folder / "x.jsonl").read_text().splitlines()]
        assert len(lines) >= count
    assert set(lines[3]["by_analyst"]) == {"alice", "bob"}


def test_csv_and_parquet_with_named_columns(folder):
    names = ["f0", "f1", "f2", "f3", "f4"]
    with (folder / "r.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["patient", *names, "ill"])
        writer.writerows([f"p{i}", *X[i], "yes" if Y[i] else "no"] for i in range(200))
    table = {name: X[200:400, j] for j, name in enumerate(names)}
    owners = [f"p{i}" for i in range(200, 400)]
    labels = ["yes" if label else "no" for label in Y[200:400]]
    pq.write_table(pa.table({**table, "ill": labels, "patient": owners}), folder / "r.parquet")
    store = folder / "c.store"
    ok("init", store, "--tau", 0.4, "--classes", "no,yes")
    ok("add", store, folder / "r.csv", "--label", "ill", "--owner", "patient")
    assert json.loads(ok("add", store, folder / "r.parquet", "--label", "ill", "--owner", "patient", "--json")) == {
        "expired": 0,
        "added": 200,
        "replaced": 0,
        "unchanged": 0,
        "records": 400,
        "owners": 400,
    }
    with (folder / "q.csv").open("w", newline="") as file:
        csv.writer(file).writerows([names, *X[400:420].tolist()])
    ok("predict", store, folder / "q.csv", "-o", folder / "a.npz")
    assert set(np.load(folder / "a.npz")["y"].tolist()) <= {"yes", "no"}
    assert json.loads(ok("owner", store, "p17", "--json"))["records"] == 1


def test_integer_labels_from_text(folder, store):
    with (folder / "r.csv").open("w", newline="") as file:
        header = ["a", "b", "c", "d", "e", "y", "owner"]
        csv.writer(file).writerows([header, [1, 2, 3, 4, 5, 0, "ann"], [5, 4, 3, 2, 1, 2, "bob"]])
    assert "added 2" in ok("add", store, folder / "r.csv")


def test_what_operators_get_wrong(folder, store):
    owners = ["a", "b", "c"]
    np.savez(folder / "nan.npz", X=np.full((3, 5), np.nan), y=[0, 1, 2], owners=owners)
    np.savez(folder / "wide.npz", X=np.ones((3, 6)), y=[0, 1, 2], owners=owners)
    np.savez(folder / "label.npz", X=X[:3], y=[0, 1, 9], owners=owners)
    np.savez(folder / "short.npz", X=X[:3], y=[0, 1])
    np.savez(folder / "nobody.npz", X=X[:3], y=[0, 1, 2])
    np.savez(folder / "floats.npz", X=X[:3], y=[0, 1, 2], owners=[1.0, 2.0, np.nan])
    np.savez(folder / "bytes.npz", X=X[:3], y=[0, 1, 2], owners=[b"1", b"2", b"3"])
    np.savez(folder / "nolabel.npz", X=X[:3])
    (folder / "bad.csv").write_text("a,b,c,d,e,y\n1,2,3,4,5,0\n1,x,3,4,5,0\n")
    (folder / "gap.csv").write_text("a,b,c,d,e,y,owner\n1,2,3,4,5,0,ann\n1,2,3,4,5,0,\n")
    (folder / "x.txt").write_text("?")
    before = ok("status", store, "--json")
    for words, code, complaint in (
        (["add", store, folder / "nan.npz"], 2, "row 0 of X holds NaN"),
        (["add", store, folder / "wide.npz"], 2, "5 features per row, got 6"),
        (["add", store, folder / "label.npz"], 2, "unknown label"),
        (["add", store, folder / "short.npz"], 2, "y must have one entry per row of X: 3, got 2"),
        (["add", store, folder / "nolabel.npz"], 2, "has no labels"),
        (["add", store, folder / "nobody.npz"], 2, "has no owners"),
        (["add", store, folder / "nobody.npz", "--each-row"], 2, "name the owners"),
        (["add", store, folder / "wide.npz", "--each-row"], 2, "names owners, so --each-row is not for it"),
        (["add", store, folder / "floats.npz"], 2, "row 2: the owner must be text or a whole number, got nan"),
        (["add", store, folder / "bytes.npz"], 2, "row 0: the owner must be text or a whole number, got "),
        (["add", store, folder / "gap.csv"], 2, "row 1: the owner must not be empty"),
        (["add", store, folder / "bad.csv"], 2, "row 1: column 'b' must be a number, got 'x'"),
        (["add", store, folder / "x.txt"], 2, "must end in one of"),
        (["add", store, folder / "none.npz"], 2, "does not exist"),
        (["predict", store, folder / "nan.npz", "-o", folder / "o.csv"], 2, "NaN"),
        (["predict", store, folder / "queries.npz", "-o", folder / "o.txt"], 2, "must end in one of"),
        (["predict", folder / "no.store", folder / "queries.npz", "-o", folder / "o.csv"], 3, "does not exist"),
        (["forget", store, "nobody"], 2, "unknown owner 'nobody'"),
        (["init", store], 3, "exists already"),
        (["init", folder / "new.store", "--epsilon", "-1"], 2, "epsilon"),
        (["init", folder / "new.store", "--tau", "3"], 2, "tau"),
        (["verify", folder / "records.npz"], 3, "cannot be opened as a store"),
    ):
        result = run(*words)
        assert result.exit_code == code, (words, result.output)
        assert complaint in result.output, (words, result.output)
        assert "Traceback" not in result.output
        assert len(result.output.strip().splitlines()) == 1
    assert ok("status", store, "--json") == before
    assert not (folder / "new.store").exists()


def test_a_store_with_a_witness_takes_analysts_and_smaller_promises(folder, store):
    witness = ("--witness", folder / "w")
    ok("verify", store, *witness)
    ok("analysts", "add", store, "bob", *witness)
    ok("keys", "create", store, "--role", "analyst", "--name", "carol", "--epsilon", "0.5", *witness)
    said = ok("analysts", "list", store, *witness)
    assert "bob " in said
    assert "carol                   epsilon = 0.5" in said


def test_the_witness_from_the_command_line(folder, store):
    witness = folder / "w"
    ok("predict", store, folder / "queries.npz", "-o", folder / "a.npz", "--witness", witness)
    old = store.read_bytes()
    ok("forget", store, "p0", "--witness", witness)
    store.write_bytes(old)
    head_path(store).unlink()
    lost = run("verify", store)
    assert lost.exit_code == 3
    assert "--new-witness" in lost.output
    ok("verify", store, "--witness", folder / "w2", "--new-witness")
    result = run("verify", store, "--witness", witness)
    assert result.exit_code == 3
    assert "old copy" in result.output


def test_doctor(store):
    report = json.loads(ok("doctor", store, "--json"))
    assert all(line["ok"] for line in report)
    found = {line["what"]: line["found"] for line in report}
    assert {"indknn", "machine", "packages", "scanner", "SQLite", "noise", "file format"} <= set(found)
    assert found["file format"].startswith(f"schema {VERSION}, ")
    assert "p0" not in json.dumps(report)  # nothing about people
    store.chmod(0o644)
    assert run("doctor", store).exit_code == 1
    there = run("doctor", "postgresql://127.0.0.1:1/people")
    assert there.exit_code == 1
    assert "cannot be reached" in there.output
    assert "free space" not in there.output  # no disk is ours


def test_damage_is_found(folder, store):
    ok("predict", store, folder / "queries.npz", "-o", folder / "a.npz")
    import apsw

    db = apsw.Connection(str(store))
    db.execute("UPDATE answers SET label = 0 WHERE label > 0")
    db.close()
    result = run("verify", store)
    assert result.exit_code == 1
    assert "does not agree with its audit trail" in result.output


# The shared model


@pytest.fixture
def shared(folder):
    """A store with the shared model, and public rows."""
    np.savez(folder / "public.npz", X=blobs(300, 3, 5, seed=8)[0])
    ok("init", folder / "m.store", "--public", folder / "public.npz", "--epsilon", 4)
    ok("add", folder / "m.store", folder / "records.npz")
    return folder / "m.store"


def test_training_at_the_operators_word(folder, shared):
    facts = json.loads(ok("train", shared, "--json"))
    assert facts["steps"] > 0
    assert facts["rounds"] == 1
    assert facts["people_about"] == pytest.approx(200, rel=0.3)
    assert 0.0 <= facts["accuracy"] <= 1.0
    before = spent(shared)
    assert before > 0
    for name in ("alice", "bob"):
        ok("analysts", "add", shared, name)
    ok("predict", shared, folder / "queries.npz", "-o", folder / "a.npz", "--analyst", "alice")
    ok("predict", shared, folder / "queries.npz", "-o", folder / "b.npz", "--analyst", "bob")
    assert spent(shared) == before  # the model is there, and nobody pays for it again
    again = ok("train", shared)
    assert "no step: too few newcomers since the last round" in again
    assert "the model is right about" in again
    assert "all is well" in ok("verify", shared)


def test_public_rows_of_a_new_store_are_in_the_audit_trail(folder, shared):
    ok("export", "audit", shared, "-o", folder / "x.jsonl")
    trail = [json.loads(line) for line in (folder / "x.jsonl").read_text().splitlines()]
    (told,) = [entry for entry in trail if entry.get("kind") == "public"]
    assert "sha256" in str(told)
    with Store(shared) as opened:
        assert len(opened.engine.predictor.public.values) == 300


def test_labels_of_public_rows_count_if_the_classes_are_known(folder):
    X, y = blobs(300, 3, 5, seed=8)
    np.savez(folder / "labelled.npz", X=X, y=y)
    lines = [",".join(map(str, [*row, label])) for row, label in zip(X.tolist(), y.tolist(), strict=True)]
    (folder / "labelled.csv").write_text("\n".join(["a,b,c,d,e,kind", *lines]))
    ok("init", folder / "draft.store", "--public", folder / "labelled.npz")
    ok("init", folder / "npz.store", "--public", folder / "labelled.npz", "--classes", "0,1,2")
    ok("init", folder / "csv.store", "--public", folder / "labelled.csv", "--classes", "0,1,2", "--label", "kind")
    ok("add", folder / "draft.store", folder / "records.npz")
    found = []
    for name in ("draft", "npz", "csv"):
        with Store(folder / f"{name}.store") as opened:
            found.append(opened.engine.predictor.public.labels)
            if name == "draft":
                assert len(opened.engine.predictor.public.values) == 300
    assert found[0] is None
    assert len(found[1]) == 300
    with Store(folder / "npz.store") as opened:
        opened.add(*blobs(200, 3, 5, seed=9), "each-row")
        list(opened.train())
        assert opened.engine.predictor.model._start is not None


def test_what_cannot_be_trained_is_named(folder, store):
    ok("init", folder / "empty.store")
    for path, complaint in (
        (folder / "empty.store", "has never held records, so there is nothing to learn from"),
        (store, "there is no shared model to train: the settings have mode='votes'"),
    ):
        result = run("train", path)
        assert result.exit_code == 2
        assert complaint in result.output
    assert run("init", folder / "other.store", "--public", folder / "nothing.npz").exit_code == 2
    np.savez(folder / "wide.npz", X=np.eye(7))
    ok("init", folder / "wide.store", "--public", folder / "wide.npz")
    result = run("add", folder / "wide.store", folder / "records.npz")
    assert result.exit_code == 2
    assert "X must have 7 features, as the public rows have, got 5" in result.output
