"""One person, one name (rule 13): every door gives the same text, nobody is guessed, and records may have ids."""

import csv
import json
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import blobs
from helpers.commands import run
from indknn import IndKNNClassifier, InvalidInputError, PrivacyError, UnknownOwnerError
from indknn import engine as engine_module
from indknn.core.inputs import as_owner_list
from indknn.core.noise import SecureNoise
from indknn.engine import Engine
from indknn.settings import Settings
from indknn.store import Store, chain
from indknn.store.verify import problems
from indknn.types import Given
from server.serving import application, create, keys_path

X, Y = blobs(400, 3, 5, seed=3)
SETTINGS = Settings(n_features=5, classes=(0, 1, 2), tau=0.3, sigma2=0.6, max_queries=60, reuse="none")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "people.store"


@pytest.fixture
def store(path):
    with Store.create(path, SETTINGS) as made:
        yield made


def trail(store):
    """What was done. A database also notes that something was undone."""
    return [entry.kind for entry in chain.entries(store.db) if entry.kind != "undone"]


def everything(store):
    return store.engine.ledger.owners(), store.spent().tolist(), store.engine.shard.record_ids().tolist(), trail(store)


# Names


def write(path, owners, rows):
    """A file of records with these owners, as somebody would write it."""
    if path.suffix == ".npz":
        np.savez(path, X=X[rows], y=Y[rows], owners=owners)
    elif path.suffix == ".parquet":
        columns = {f"f{j}": X[rows][:, j] for j in range(5)}
        pq.write_table(pa.table({**columns, "y": Y[rows], "owner": owners}), path)
    else:
        with path.open("w", newline="") as file:
            table = zip(X[rows].tolist(), Y[rows].tolist(), owners, strict=True)
            csv.writer(file).writerows([[*"abcde", "y", "owner"], *([*x, y, o] for x, y, o in table)])
    return path


def test_a_person_has_one_name_from_every_door(path, tmp_path):
    """Row 2 of the review: 60 people from a npz and then from a csv were 120, and forgetting 17 erased one of two."""
    assert run("init", path, "--tau", 0.3, "--classes", "0,1,2").exit_code == 0
    numbers, texts = np.arange(60), [str(i) for i in range(60)]
    files = [("a.npz", numbers), ("b.npz", np.array(texts)), ("c.csv", numbers), ("d.parquet", numbers)]
    for i, (name, owners) in enumerate([*files, ("e.parquet", texts)]):
        result = run("add", path, write(tmp_path / name, owners, slice(60 * i, 60 * i + 60)))
        assert f"now {60 * (i + 1)} records of 60 people" in result.output
    with Store(path) as store, application(store) as client:
        for owner in (17, "17"):
            record = {"features": X[300 + len(str(owner))].tolist(), "label": 0, "owner": owner}
            answer = client("POST", "/v1/records", json={"records": [record, {**record, "features": [1, 2, 3, 4, 5]}]})
            assert answer.json()["owners"] == 60
        store.add(X[310:314], Y[310:314], [17, "17", np.int64(17), np.str_("17")])
        assert client("GET", "/v1/owners/17").json()["records"] == 5 + 4 + 4
    receipt = json.loads(run("forget", path, "17", "--json").stdout)
    assert (receipt["records"], receipt["owners"]) == (13, ["17"])
    with Store(path) as store:
        assert "17" not in store.engine.ledger.owners()
        assert not list(problems(store))


def test_an_owners_key_is_for_the_one_person_of_that_name(store):
    """Row 3 of the review: with a key for the number 7, `DELETE /v1/owners/7` erased somebody who was the text "7"."""
    store.add(X[:3], Y[:3], [7, 8, 9])
    _, key = create(keys_path(store.path), "owner", "seven", owner=7)
    with application(store, roles=("curator",)) as client:
        record = {"features": X[3].tolist(), "label": 0, "owner": "7"}
        assert client("POST", "/v1/records", client.keys["curator"], json={"records": [record]}).status_code == 200
        for other in ("int:7", "str:7", "007", "8"):
            assert client("DELETE", f"/v1/owners/{other}", key).status_code == 403
        receipt = client("DELETE", "/v1/owners/7", key).json()
    assert (receipt["records"], receipt["owners_forgotten"]) == (2, 1)
    assert store.engine.ledger.owners() == ["8", "9"]


@pytest.mark.parametrize(
    "bad", [1.0, np.float32(7), True, np.bool_(True), None, np.nan, b"7", np.bytes_(b"7"), [7], np.datetime64(7, "ns")]
)
def test_what_is_no_name_is_refused_by_name(store, bad):
    for call in (
        lambda: store.add(X[:2], Y[:2], ["ann", bad]),
        lambda: IndKNNClassifier(tau=0.3).fit(X[:2], Y[:2], owners=["ann", bad]),
        lambda: store.add(X[:2], Y[:2], ["ann", "bob"], ["a", bad]),
    ):
        with pytest.raises(
            InvalidInputError, match="(row 1: the )?(owner|record id)( 1)? must be text or a whole number, got"
        ):
            call()
    assert trail(store) == ["init"]


def test_names_that_look_the_same_are_not_two_people(store):
    """As other programs write them: with a space at the end, as a float, with an accent apart from its letter.

    And names that no address can hold, so that nobody could look them up or forget them over HTTP.
    """
    store.add(X[:2], Y[:2], ["17", "Jos\u00e9"])
    for twin in ("17 ", " 17", "17\n", "17.0", "17.", "+17", "Jose\u0301", "1\n7", "1\r7", "\ud800"):
        with pytest.raises(InvalidInputError, match="is new here, and must have a name of another form"):
            store.add(X[2:3], Y[2:3], [twin])
    store.add(X[2:5], Y[2:5], ["017", "17.5", "Jos\u00e9 "[:4]])
    assert store.engine.ledger.owners() == ["17", "Jos\u00e9", "017", "17.5"]


def test_arrays_are_read_by_their_kind():
    assert as_owner_list(np.array([3, -4], dtype=np.int16)) == ["3", "-4"]
    assert as_owner_list(np.array(["a", "7"])) == ["a", "7"]
    assert as_owner_list(np.array([7, "7", np.uint8(7)], dtype=object)) == ["7"] * 3
    assert as_owner_list(np.array(5)) == ["5"]
    for bad in (np.array([1.0]), np.array([b"a"]), np.array([5], dtype="timedelta64[s]"), np.array([1], "M8[ns]")):
        with pytest.raises(InvalidInputError, match="owner 0 must be text or a whole number"):
            as_owner_list(bad)


# Rows without owners


def test_a_nightly_fit_without_owners_refunds_nobody(path):
    """Row 1 of the review: rows shifted by one each night, and everybody had a new budget."""

    def night(owners, shift):
        model = IndKNNClassifier(tau=0.3, sigma2=0.6, max_queries=60, reuse="none", classes=[0, 1, 2], store=path)
        try:
            model.fit(np.roll(X[:60], shift, axis=0), np.roll(Y[:60], shift), owners=owners)
            model.predict(X[100:160])
        finally:
            if hasattr(model, "_engine"):
                model._engine.close()

    for shift in range(2):
        with pytest.raises(InvalidInputError, match="a store needs the owner of every row"):
            night(None, shift)
    assert not path.exists()
    night("each-row", 0)
    with Store(path) as store:
        before = everything(store)
        assert max(before[1]) > 0
    for shift in (1, 2, 3):
        with pytest.raises(PrivacyError, match="name the owners"):
            night("each-row", shift)
    with Store(path) as store:
        assert everything(store) == before


def test_a_store_takes_rows_without_owners_only_while_nobody_is_or_was_in_it(store):
    prepared = SETTINGS.prepare(X[:3], Y[:3])
    for call in (
        lambda: store.add(X[:3], Y[:3]),
        lambda: store.add_batches([(X[:3], Y[:3], None)]),
        lambda: store.put(Given(*prepared)),
        lambda: store.replace_all(Given(*prepared)),
    ):
        with pytest.raises(InvalidInputError, match="a store needs the owner of every row"):
            call()
    with pytest.raises(PrivacyError, match="name the owners"):
        store.add_batches([(X[:3], Y[:3], ["a", "b", "c"]), (X[3:5], Y[3:5], "each-row")])
    assert trail(store) == ["init"]
    added = store.add_batches([(X[:3], Y[:3], "each-row"), (X[3:5], Y[3:5], "each-row")])
    assert len(added.numbers) == added.added == 5
    assert store.engine.ledger.owners() == [f"each-row:{i}" for i in range(5)]
    with pytest.raises(PrivacyError, match="may be the same: name the owners"):
        store.add(X[:1], Y[:1], "each-row")
    with pytest.raises(PrivacyError, match="name the owners"):
        store.put(Given(*prepared, "each-row"))
    store.replace_all(Given(*prepared, "each-row"))  # nobody has spent anything
    assert store.engine.ledger.owners() == ["each-row:5", "each-row:6", "each-row:7"]
    store.predict(X[100:110])
    store.forget(store.engine.ledger.owners())
    for call in (store.put, store.replace_all):
        with pytest.raises(PrivacyError, match="name the owners"):
            call(Given(*prepared, "each-row"))
    assert not list(problems(store))


def test_names_that_are_made_up_are_nobody_elses(store):
    store.add(X[:3], Y[:3], "each-row")
    for name in ("each-row:3", "each-row:", "each-row:ann", "each-row:02"):
        with pytest.raises(InvalidInputError, match="is new here, and must have a name of another form"):
            store.add(X[5:7], Y[5:7], ["ann", name])
    store.predict(X[100:110])
    store.forget(["each-row:1"])
    spent = store.spent(["each-row:1", "each-row:2"]).tolist()
    store.add(X[5:7], Y[5:7], ["each-row:1", "each-row:2"])  # who is known by such a name stays who they are
    assert store.spent(["each-row:1", "each-row:2"]).tolist() == spent
    store.add(X[7:8], Y[7:8], ["each-row"])  # in a list it is a name like others
    assert "each-row" in store.engine.ledger.owners()
    path = store.path
    store.close()
    with Store(path) as again:
        assert again.engine.ledger.owners() == ["each-row:0", "each-row:1", "each-row:2", "each-row"]
        assert list(again.engine.ledger.new_names(1, "each-row:")) == ["each-row:3"]
        assert not list(problems(again))


def test_each_row_over_http_and_from_the_command_line(path, tmp_path):
    np.savez(tmp_path / "a.npz", X=X[:5], y=Y[:5])
    run("init", path, "--tau", 0.3, "--classes", "0,1,2")
    assert run("add", path, tmp_path / "a.npz").exit_code == 2
    assert "5 records of 5 people" in run("add", path, tmp_path / "a.npz", "--each-row").output
    assert "name the owners" in run("add", path, tmp_path / "a.npz", "--each-row").output
    body = {"records": [{"features": X[0].tolist(), "label": 0}], "each_row": True}
    with Store(path) as store, application(store) as client:
        answer = client("POST", "/v1/records", json=body)
        assert (answer.status_code, answer.json()["code"]) == (409, "who_is_who")
    with Store.create(tmp_path / "b", SETTINGS) as store, application(store) as client:
        assert client("POST", "/v1/records", json={**body, "each_row": False}).status_code == 422
        named = {**body, "records": [{**body["records"][0], "owner": "ann"}]}
        assert client("POST", "/v1/records", json=named).status_code == 422
        assert client("POST", "/v1/records", json=body).json()["owners"] == 1
        assert store.engine.ledger.owners() == ["each-row:0"]


# Ids of records


def by_id(store, rows, labels, owners, ids):
    return store.add(X[rows], labels, owners, ids).tolist()


def test_adding_a_record_again_changes_nothing_and_charges_nobody(store):
    first = by_id(store, [0, 1], [0, 1], ["ann", "bob"], ["a", 7])
    store.predict(X[100:110])
    before, size = everything(store), store.path.stat().st_size
    for _ in range(3):
        assert by_id(store, [0, 1], [0, 1], ["ann", "bob"], ["a", "7"]) == first
    assert everything(store) == before
    assert store.path.stat().st_size == size
    path = store.path
    store.close()
    with Store(path) as again:
        before = everything(again)
        assert by_id(again, [0, 1], [0, 1], ["ann", "bob"], ["a", 7]) == first
        assert everything(again) == before


def test_adding_another_record_with_the_same_id_replaces_it(store):
    first = by_id(store, [0, 1, 2], [0, 1, 2], ["ann", "ann", "bob"], ["a", "b", "c"])
    store.predict(X[100:110])
    spent = store.spent(["ann", "bob"]).tolist()
    new = by_id(store, [3, 1, 4], [0, 1, 2], ["ann", "ann", "dora"], ["a", "b", "d"])
    assert new[1] == first[1]
    assert len({*first, *new}) == 5
    assert sorted(store.engine.shard.record_ids().tolist()) == sorted([*new, first[2]])
    assert by_id(store, [0], [2], ["bob"], ["c"]) != [first[2]]  # their only record: they are never gone
    assert store.engine.ledger.owners() == ["ann", "bob", "dora"]
    assert not store.engine.ledger.tombstones
    assert store.spent(["ann", "bob"]).tolist() == spent
    assert not list(problems(store))
    label_changed = by_id(store, [3], [1], ["ann"], ["a"])
    assert label_changed != new[:1]
    path = store.path
    store.close()
    with Store(path) as again:
        assert len(again.engine.shard) == 4
        assert by_id(again, [3], [1], ["ann"], ["a"]) == label_changed
        assert not list(problems(again))


def test_an_id_stays_with_its_owner_and_is_given_once(store):
    by_id(store, [0, 1], [0, 1], ["ann", "bob"], ["a", "b"])
    before = everything(store)
    engine = store.engine
    with pytest.raises(InvalidInputError, match="record id 'a' belongs to another owner than 'bob'"):
        by_id(store, [2], [0], ["bob"], ["a"])
    assert store.engine is engine  # refused before anything was touched
    with pytest.raises(InvalidInputError, match="record id 'c' must not be given twice"):
        by_id(store, [2, 3], [0, 0], ["bob", "bob"], ["c", "c"])
    for again in (2, 3):  # equal or not
        with pytest.raises(InvalidInputError, match="a record id must not be given twice"):
            store.add_batches([(X[2:3], [0], ["bob"], ["c"]), (X[again : again + 1], [0], ["bob"], ["c"])])
    with pytest.raises(InvalidInputError, match="record ids must name one record id per row: 1 rows, got 2"):
        by_id(store, [2], [0], ["bob"], ["c", "d"])
    assert everything(store) == before
    store.forget(["ann"])
    by_id(store, [2], [0], ["bob"], ["a"])  # who is gone has no records, and no ids of records
    assert not list(problems(store))


def test_ids_of_records_go_with_their_owner(store):
    store.add(X[:100], Y[:100], [f"p{i % 50}" for i in range(100)], [f"a most peculiar visit {i}" for i in range(100)])
    keys = store.engine.ledger.record_keys([f"a most peculiar visit {i}" for i in (7, 57)])

    def traces():
        files = [file.read_bytes() for file in store.path.parent.iterdir()]
        assert not any(b"peculiar visit" in body for body in files)
        return [sum(key.tobytes() in body for body in files) for key in keys]

    assert min(traces()) > 0
    store.forget(["p7"])
    assert traces() == [0, 0]
    assert not list(problems(store))


def test_ids_of_records_without_a_store():
    engine = Engine(SETTINGS, SecureNoise())
    first = engine.add(X[:3], Y[:3], ["a", "b", "b"], [1, 2, 3]).tolist()
    assert engine.add(X[:3], Y[:3], ["a", "b", "b"], [1, 2, 3]).tolist() == first
    (third,) = engine.add(X[3:4], Y[3:4], ["b"], ["3"]).tolist()
    assert sorted(engine.shard.record_ids().tolist()) == sorted([*first[:2], third])
    with pytest.raises(InvalidInputError, match="another owner"):
        engine.add(X[3:4], Y[3:4], ["a"], [3])
    model = IndKNNClassifier(tau=0.3, classes=[0, 1, 2]).fit(X[:3], Y[:3], owners=["a", "b", "b"], record_ids=[1, 2, 3])
    model.partial_fit(X[:4], Y[:4], owners=["a", "b", "b", "c"], record_ids=[1, 2, 3, 4])
    assert model.record_ids_.tolist() == [0, 1, 2, 3]


def test_ids_of_records_over_http_and_from_files(path, tmp_path):
    run("init", path, "--tau", 0.3, "--classes", "0,1,2")
    with (tmp_path / "a.csv").open("w", newline="") as file:
        rows = [
            [*x, y, f"p{i}", 100 + i] for i, (x, y) in enumerate(zip(X[:20].tolist(), Y[:20].tolist(), strict=True))
        ]
        csv.writer(file).writerows([[*"abcde", "y", "owner", "visit"], *rows])
    ids = np.arange(100, 120)
    np.savez(tmp_path / "a.npz", X=X[:20], y=Y[:20], owners=[f"p{i}" for i in range(20)], record_ids=ids)
    first = ["a.csv", "--record-id", "visit"]
    for words in (first, ["a.npz"], list(first)):
        result = run("add", path, tmp_path / words[0], *words[1:])
        assert "now 20 records of 20 people" in result.output
        assert result.output.startswith("added 20" if words is first else "added 0")
        assert "already" not in result.output
    with Store(path) as store, application(store) as client:
        visit = {"features": X[3].tolist(), "label": int(Y[3]), "owner": "p3", "record_id": 103}
        (number,) = client("POST", "/v1/records", json={"records": [visit]}).json()["ids"]
        assert number == 3
        other = {**visit, "features": [1, 2, 3, 4, 5]}
        answer = client("POST", "/v1/records", json={"records": [other, {**other, "record_id": None}]}).json()
        assert (answer["records"], answer["owners"]) == (21, 20)
        for bad in ({**visit, "owner": "p4"}, {**visit, "record_id": 1.5}, {**visit, "record_id": ""}):
            assert client("POST", "/v1/records", json={"records": [bad]}).status_code == 422
        assert client("POST", "/v1/records", json={"records": [visit, visit]}).status_code == 422
        by_number = {**visit, "id": answer["ids"][0], "features": [5, 4, 3, 2, 1]}
        assert client("POST", "/v1/records", json={"records": [by_number]}).json()["records"] == 21
        assert (
            client("POST", "/v1/records", json={"records": [{**visit, "id": answer["ids"][1]}]}).json()["records"] == 20
        )
        assert not list(problems(store))


def test_single_records_are_removed_by_their_own_ids(store):
    """Everywhere in one way, all or none: their owner stays as long as another record is here."""
    engine = Engine(SETTINGS, SecureNoise())
    model = IndKNNClassifier(tau=0.3, classes=[0, 1, 2])
    model.fit(X[:4], Y[:4], owners=["ann", "ann", "bob", "dora"], record_ids=["a", "b", 7, "d"])
    for held in (store, engine):
        held.add(X[:4], Y[:4], ["ann", "ann", "bob", "dora"], ["a", "b", 7, "d"])
    calls = {
        store: lambda ids: store.forget(record_ids=ids)["records"],
        engine: lambda ids: engine.forget_records([], ids),
        model: lambda ids: model.forget(record_ids=ids),
    }
    for held, forget in calls.items():
        shard = (held._engine if held is model else held if held is engine else held.engine).shard
        for unknown in (["a", "x"], "x"):
            with pytest.raises(InvalidInputError, match="unknown record id 'x': no such record is held"):
                forget(unknown)
        assert len(shard) == 4
        assert forget(["a", 7, "7"]) == 2
        assert shard.ledger.owners() == ["ann", "dora"]
        assert forget("b") == 1
        assert shard.ledger.owners() == ["dora"]
    receipt = store.forget("dora", record_ids=[], records=None)
    assert (receipt["records"], receipt["owners_forgotten"]) == (1, 1)
    with pytest.raises(InvalidInputError, match="record id 0 must be text or a whole number, got 1.5"):
        store.forget(record_ids=[1.5])
    with pytest.raises(InvalidInputError, match="one of owners"):
        model.forget("dora", record_ids=["d"])
    assert not list(problems(store))


# What is said aloud


def test_rows_that_are_here_already_are_said_aloud(store, tmp_path):
    """Row 11 of the review: adding a file again doubled everybody without a word."""
    owners = [f"p{i % 10}" for i in range(20)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.add(X[:20], Y[:20], owners)
        store.add(X[:20], Y[:20], owners[::-1])  # other people's
        store.add(X[20:40], Y[20:40], owners)
    with pytest.warns(UserWarning, match="12 of 20 rows are already here, byte for byte; give record ids to replace"):
        store.add(np.concatenate([X[:12], X[50:58]]), np.concatenate([Y[:12], Y[50:58]]), owners)
    with pytest.warns(UserWarning, match="8 of 8 rows") as caught:  # two batches, one line
        store.add_batches([(X[:4], Y[:4], owners[:4]), (X[4:8], Y[4:8], owners[4:8])])
    assert len(caught) == 1
    model = IndKNNClassifier(tau=0.3, classes=[0, 1, 2]).fit(X[:20], Y[:20], owners=owners)
    with pytest.warns(UserWarning, match="1 of 2 rows are already here"):
        model.partial_fit(X[:2], [Y[0], (Y[1] + 1) % 3], owners=owners[:2])
    with application(store) as client:
        rows = [{"features": X[i].tolist(), "label": int(Y[i]), "owner": o} for i, o in ((0, "p0"), (0, "p5"))]
        answer = client("POST", "/v1/records", json={"records": rows}).json()
        assert answer["already_here"] == 1
        assert answer["warnings"] == [
            "1 of 2 rows are already here, byte for byte; give record ids to replace instead of add"
        ]
    np.savez(tmp_path / "a.npz", X=X[:20], y=Y[:20], owners=owners)
    store.close()
    result = run("add", str(store.path), str(tmp_path / "a.npz"), "--json")
    assert json.loads(result.stdout)["added"] == 20
    assert result.stderr == (
        "indknn: 20 of 20 rows are already here, byte for byte; give record ids to replace instead of add\n"
    )


def test_there_are_never_more_records_than_sums_can_hold(store, monkeypatch):
    """Row 11 of the review: MAX_RECORDS was never enforced."""
    monkeypatch.setattr(engine_module, "MAX_RECORDS", 10)
    engine = Engine(SETTINGS, store.noise)
    for held in (store, engine):
        held.add(X[:8], Y[:8], range(8), range(8))
        with pytest.raises(InvalidInputError, match="there may be at most 10 records, got 3 more"):
            held.add(X[8:11], Y[8:11], range(8, 11))
        held.add(X[:10], Y[:10], range(10), range(10))  # two more
    assert len(store.engine.shard) == len(engine.shard) == 10


def test_unknown_people_are_unknown_under_any_form(store):
    store.add(X[:1], Y[:1], [7])
    for name in ("07", "7.0", "int:7", "str:7", 8):
        with pytest.raises(UnknownOwnerError, match="unknown owner"):
            store.forget([name])


def test_blocks_without_ids_are_no_damage(store):
    """Free slots of five blocks get ids at once. The sixth has none, in memory or read back."""
    owners = [f"p{i}" for i in range(400)]
    store.add(X, Y, owners)
    store.forget([owners[i] for i in (10, 70, 130, 200, 260)])
    store.add(X[:5], Y[:5], [f"q{i}" for i in range(5)], record_ids=[f"visit {i}" for i in range(5)])
    assert not list(problems(store))
