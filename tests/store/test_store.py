"""The durable store, when nothing goes wrong; and what users do wrong."""

import json
import re
import threading
from types import SimpleNamespace

import apsw
import numpy as np
import pytest

import indknn
from conftest import blobs
from helpers.asking import declared
from indknn import IndKNNClassifier, InvalidInputError, PrivacyError, UnknownOwnerError
from indknn.core.noise import SeededNoise
from indknn.errors import StaleStoreError, StoreError, StoreLockedError
from indknn.ledger.figures import statement
from indknn.settings import Settings
from indknn.store import Store, chain, journal
from indknn.store.backup import backup
from indknn.store.change import Change
from indknn.store.filehome import head_path
from indknn.store.reports import status
from indknn.store.verify import problems
from indknn.types import Given

X, Y = blobs(700, 3, 8)
RECORDS, QUERIES = X[:600], X[600:]
OWNERS = [f"person-{i % 200}" for i in range(600)]
SETTINGS = Settings(n_features=8, classes=(0, 1, 2), tau=0.4, sigma2=0.5, max_queries=100, reuse="none")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "people.store"


@pytest.fixture
def store(path):
    with Store.create(path, SETTINGS) as made:
        declared(made, "alice", "ann", "bob").add(RECORDS, Y[:600], OWNERS)
        yield made


def everything(store):
    ledger = store.engine.ledger
    return (
        ledger.owners(),
        [ledger.column(s).tolist() for s in sorted(ledger.scopes, key=str)],
        ledger.participation.tolist(),
        dict(ledger.tombstones),
        sorted(store.engine.shard.record_ids().tolist()),
    )


def reopened(store):
    store.close()
    return indknn.open(store.path)


def test_answers_and_budgets_survive_reopening_to_the_bit(store):
    answers = store.predict(QUERIES)
    store.predict(QUERIES[:20], analyst="alice")
    before = everything(store)
    with reopened(store) as again:
        assert everything(again) == before
        assert not list(problems(again))
        assert (again.predict(QUERIES) == answers).all()  # repeats are free, in another process too
        assert everything(again) == before
        assert again.settings == SETTINGS


def test_nothing_is_moved_for_the_first_who_come_after_opening(store):
    """All other answers would wait for that: a store of 50,000 x 768 took a fifth of a second."""
    with reopened(store) as again:
        shard = again.engine.shard
        arrays = shard.index.slots.values, shard.index.slots.roots, shard._owner, shard._label.raw[0]
        again.add(RECORDS[:5], Y[:5], [f"newcomer-{i}" for i in range(5)])
        assert len(shard) == 605
        now = shard.index.slots.values, shard.index.slots.roots, shard._owner, shard._label.raw[0]
        assert all(before is after for before, after in zip(arrays, now, strict=True))


def test_recovery_without_a_clean_close_is_the_same(store, tmp_path):
    """Snapshot and replay: the file as a crash would leave it, with debits not yet folded."""
    store.predict(QUERIES)
    store.forget(["person-3"])
    store.predict(-QUERIES)
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in store.path.parent.glob("people.store*"):
        if file.is_file() and not file.name.endswith(".lock"):
            (copy / file.name).write_bytes(file.read_bytes())
    with indknn.open(copy / "people.store") as other:
        assert everything(other) == everything(store)
        assert not list(problems(other))


def test_it_is_the_same_mechanism_as_in_memory(path):
    """Under the same noise the store and the estimator agree answer by answer."""

    class Recorded(SeededNoise):
        secure = True  # only to be let in

    model = IndKNNClassifier(tau=0.4, sigma2=0.5, max_queries=100, reuse="none", random_state=5)
    model.fit(RECORDS, Y[:600], owners=OWNERS)
    with Store.create(path, SETTINGS, noise=Recorded(5)) as store:
        store.add(RECORDS, Y[:600], OWNERS)
        assert (store.predict(QUERIES) == model.predict(QUERIES)).all()
        assert (store.spent() == model.privacy_spent()).all()


def test_seeded_noise_is_refused(path):
    with pytest.raises(PrivacyError, match="refuses seeded noise"):
        Store.create(path, SETTINGS, noise=SeededNoise(1))
    with pytest.raises(PrivacyError, match="refuses seeded noise"):
        IndKNNClassifier(store=path.with_name("other"), random_state=1).fit(RECORDS, Y[:600], OWNERS)


def test_a_request_id_pays_once(store):
    first = store.predict(QUERIES[:10], request_id="r1")
    spent = store.spent()
    assert (store.predict(QUERIES[:10], request_id="r1") == first).all()
    with reopened(store) as again:
        assert (again.predict(QUERIES[:10], request_id="r1") == first).all()
        assert (again.spent() == spent).all()
        with pytest.raises(InvalidInputError, match="request id 'r1' was used before for other queries"):
            again.predict(QUERIES[:9], request_id="r1")
        with pytest.raises(InvalidInputError, match="used before"):
            again.predict(QUERIES[:10], analyst="bob", request_id="r1")
        assert (again.spent() == spent).all()


def test_request_ids_matter_where_repeats_are_not_free(path):
    settings = Settings(
        n_features=8, classes=(0, 1, 2), tau=0.4, sigma2=0.5, max_queries=100, reuse="none", free_repeats=False
    )
    with Store.create(path, settings) as store:
        store.add(RECORDS, Y[:600], OWNERS)
        first = store.predict(QUERIES[:2], request_id="a")
        spent = store.spent().sum()
        assert (store.predict(QUERIES[:2], request_id="a") == first).all()
        assert store.spent().sum() == spent
        store.predict(QUERIES[:2], request_id="b")
        assert store.spent().sum() > spent


def test_forgetting_and_coming_back_over_processes(store):
    store.predict(QUERIES)
    rho = store.spent(["person-7"])[0]
    assert rho > 0
    receipt = store.forget(["person-7"])
    assert receipt["records"] == 3
    assert receipt["owners_forgotten"] == 1
    json.dumps(receipt)
    again = reopened(store)
    entry = chain.last(again.db)
    assert entry.hash.hex() == receipt["audit_hash"]
    assert again.spent(["person-7"])[0] == rho
    again.add(RECORDS[:1], Y[:1], ["person-7"])
    assert again.spent(["person-7"])[0] == rho
    last = reopened(again)
    assert last.spent(["person-7"])[0] == rho
    assert statement(last.engine, "person-7")["records"] == 1
    assert not list(problems(last))
    last.close()


def test_forgotten_bytes_are_nowhere(store):
    rng = np.random.default_rng(7)
    rows = rng.normal(size=(3, 8))
    store.add(rows, [0, 1, 2], ["a most peculiar zebra"] * 3)
    store.predict(np.concatenate([rows + 0.1, QUERIES]))
    traces = [b"peculiar zebra", *(v.tobytes() for v in SETTINGS.quantise(rows, "X").values)]

    def found():
        return [
            (file.name, trace) for file in store.path.parent.iterdir() for trace in traces if trace in file.read_bytes()
        ]

    assert len({trace for _, trace in found()}) == 4
    store.forget(["a most peculiar zebra"])
    assert not found()
    store.close()
    assert not found()


def test_record_ids_do_not_repeat_over_processes(store):
    ids = set(store.engine.shard.record_ids().tolist())
    store.forget(records=[5, 6])
    again = reopened(store)
    new = set(again.add(RECORDS[:4], Y[:4], ["a", "b", "c", "d"]).tolist())
    assert not new & ids
    assert len(again.engine.shard) == 602
    again.close()


def test_adding_is_all_or_nothing(store):
    before = everything(store)

    def batches():
        yield RECORDS[:50], Y[:50], [f"new-{i}" for i in range(50)]
        yield RECORDS[:5] * np.nan, Y[:5], OWNERS[:5]

    with pytest.raises(InvalidInputError, match="row 0 of X holds NaN or infinity.*counting from row 50"):
        store.add_batches(batches())
    assert everything(store) == before
    for bad in ((RECORDS[:2, :7], Y[:2]), (RECORDS[:2], [0, 9]), (RECORDS[:2], [0])):
        with pytest.raises(InvalidInputError):
            store.add(*bad, ["a", "b"])
    assert everything(store) == before
    assert not list(problems(store))


def test_bad_queries_and_owners_change_nothing(store):
    before = everything(store)
    with pytest.raises(InvalidInputError, match="8 features per row, got 7"):
        store.predict(QUERIES[:, :7])
    with pytest.raises(UnknownOwnerError, match="unknown owner 'nobody'"):
        store.forget(["person-1", "nobody"])
    assert everything(store) == before


def test_one_writer_with_a_name(store):
    with pytest.raises(StoreLockedError, match=r"in use by process \d+ on .* since"):
        indknn.open(store.path)


def test_files_that_are_no_stores(tmp_path):
    with pytest.raises(StoreError, match="does not exist; make a store with: indknn init"):
        indknn.open(tmp_path / "nothing")
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"not a database at all" * 100)
    with pytest.raises(StoreError, match="cannot be opened as a store"):
        indknn.open(garbage)
    with pytest.raises(StoreError, match="exists already"):
        Store.create(garbage, SETTINGS)
    with pytest.raises(StoreError, match="cannot be opened"):
        Store.create(tmp_path / "no folder" / "x", SETTINGS)


def test_bad_settings_make_no_file(path):
    for bad in ({"tau": 2.0}, {"epsilon": -1.0}, {"sigma2": 0.0}, {"index": "x"}):
        with pytest.raises(InvalidInputError):
            Store.create(path, Settings(**{"n_features": 8, "classes": (0,), **bad}))
        assert not path.exists()


def test_an_old_copy_is_detected_by_the_witness(path, tmp_path):
    witness = tmp_path / "elsewhere" / "witness"
    witness.parent.mkdir()
    with Store.create(path, SETTINGS, witness=witness) as store:
        store.add(RECORDS, Y[:600], OWNERS)
    old = path.read_bytes()
    with indknn.open(path, witness=witness) as store:
        store.predict(QUERIES)
    with indknn.open(path, witness=witness):
        pass
    path.write_bytes(old)
    with pytest.raises(StaleStoreError, match="people.store-head has seen"):
        indknn.open(path, witness=witness)
    head_path(path).unlink()  # what somebody does who restores a backup
    with pytest.raises(StaleStoreError, match="it is an old copy"):
        indknn.open(path, witness=witness)
    with pytest.raises(StaleStoreError, match="none was given"):
        indknn.open(path)


def test_concurrent_callers_share_commits(store):
    answers, failures = {}, []

    def work(k):
        try:
            for i in range(k, 100, 8):
                answers[i] = store.predict(QUERIES[i : i + 1], request_id=f"q{i}")[0]
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    commits = sum(entry.kind == "answers" for entry in chain.entries(store.db))
    assert commits <= 100
    assert not list(problems(store))
    with reopened(store) as again:
        assert [again.predict(QUERIES[i : i + 1], request_id=f"q{i}")[0] for i in range(100)] == [
            answers[i] for i in range(100)
        ]


def test_reuse_and_a_chosen_tau_are_durable(path):
    settings = Settings(n_features=8, classes=(0, 1, 2), max_queries=20, sigma2=0.2, reuse="labels")
    store = Store.create(path, settings)
    store.add(RECORDS, Y[:600], OWNERS)
    store.predict(QUERIES[:60])
    tau = store.engine.predictor.plan.tau
    again = reopened(store)
    assert again.settings.tau == tau
    assert again.engine.predictor.plan.tau == tau
    pool = again.engine.predictor._transcript(None).pool
    assert len(pool) == 60
    again.close()


def test_folding_changes_nothing_but_the_file(store):
    store.predict(QUERIES)
    before = everything(store)
    assert store.db.execute("SELECT count(*) FROM debits").get == 100
    store.fold()
    assert store.db.execute("SELECT count(*) FROM debits").get == 0
    assert everything(store) == before
    assert not list(problems(store))


def test_verify_notices_what_was_tampered_with(store):
    store.predict(QUERIES)
    assert not list(problems(store))
    for change, words in (
        ("UPDATE answers SET label = 1 - label WHERE label < 2", "not as the audit trail has them"),
        ("UPDATE audit SET body = '{}' WHERE position = 2", "the hash of entry 2 does not fit"),
        ("DELETE FROM audit WHERE position = 2", "entry 2 is missing"),
        ("DELETE FROM debits WHERE seq = (SELECT min(seq) FROM debits)", r"answer \d+ has no debits"),
        (
            "UPDATE debits SET body = x'010100000000000000000307' WHERE length(body) > 12",
            r"the debits of answer \d+ are not what it was charged",
        ),
        ("UPDATE answers SET charged = '0' WHERE seq = 5", "not charged what the audit trail says|people have spent"),
        ("DELETE FROM owners WHERE slot = 3", "memory and disk disagree"),
    ):
        db = store.db
        db.execute("SAVEPOINT tampering")
        db.execute(change)
        try:
            found = "\n".join(problems(store))
        except StoreError as error:
            found = str(error)
        finally:
            db.execute("ROLLBACK TO tampering; RELEASE tampering")
        assert found, change
        assert re.search(words, found), (change, found)
    assert not list(problems(store))


@pytest.mark.parametrize(
    "change",
    [
        """UPDATE meta SET value = replace(value, '"epsilon": 1.0', '"epsilon": 9.0') WHERE name = 'settings'""",
        "UPDATE meta SET value = zeroblob(32) WHERE name = 'key'",
        "UPDATE meta SET value = '5' WHERE name = 'next_number'",
        "UPDATE meta SET value = 'another' WHERE name = 'store'",
        "UPDATE requests SET labels = zeroblob(length(labels))",
        "DELETE FROM requests",
        "UPDATE scopes SET name = '=carl' WHERE name = '=ann'",
        "UPDATE tombstones SET spent = '{}'",
        "DELETE FROM tombstones",
        "UPDATE participation SET queries = zeroblob(length(queries))",
        "UPDATE balances SET spent = zeroblob(length(spent))",
        "UPDATE records SET body = (SELECT body FROM records WHERE slot = 7) WHERE slot = 8",
        "UPDATE answers SET label = 1 - label WHERE label < 2",
        "UPDATE answers SET scale = scale * 2",
        "DELETE FROM debits WHERE seq = (SELECT max(seq) FROM debits)",
        "UPDATE audit SET at = '2000-01-01T00:00:00Z' WHERE position = 2",
        "UPDATE record_keys SET digests = zeroblob(length(digests))",
        "DELETE FROM record_keys",
        "INSERT INTO additions VALUES (zeroblob(32), x'00', x'00', 1)",
        "UPDATE meta SET value = 'other' WHERE name = 'store'",
    ],
)
def test_a_file_that_was_edited_is_refused(store, change, monkeypatch):
    for analyst in (None, "ann", "bob"):
        store.predict(QUERIES[:20], analyst, request_id=f"request of {analyst}")
    store.forget(["person-9"])
    store.add(RECORDS[:2], Y[:2], ["ann", "bob"], ["visit 1", "visit 2"])
    store.predict(QUERIES[20:30])
    copy = store.path.with_name("copy")
    monkeypatch.setattr(store, "fold", lambda: None)  # so that there are debits to edit
    backup(store, copy)
    db = apsw.Connection(str(copy))
    changed = db.total_changes()
    db.execute(change)
    assert db.total_changes() > changed
    db.close()
    with pytest.raises(StoreError, match="audit trail"):
        Store(copy)


def test_reports(store):
    store.predict(QUERIES)
    facts = statement(store.engine, "person-0")
    assert facts["records"] == 3
    assert 0 < facts["one_analyst"]["spent"] <= facts["one_analyst"]["budget"]
    assert 0 < facts["one_analyst"]["epsilon_so_far"] <= 1.0
    view = status(store)
    assert view["owners"] == 200
    assert sum(view["spent_share_histogram"]) == 200
    assert view["answers"] == 100
    json.dumps(view)


def test_the_estimator_keeps_its_store(path):
    model = IndKNNClassifier(tau=0.4, sigma2=0.5, max_queries=100, store=path).fit(RECORDS, Y[:600], owners=OWNERS)
    answers = model.predict(QUERIES)
    spent = model.privacy_spent(["person-1"])
    model._engine.close()
    again = IndKNNClassifier(tau=0.4, sigma2=0.5, max_queries=100, store=str(path), classes=[0, 1, 2])
    again.partial_fit(RECORDS[:1], Y[:1], owners=["newcomer"])
    assert (again.predict(QUERIES) == answers).all()
    assert again.privacy_spent(["person-1"]) == spent
    again.fit(RECORDS, Y[:600], owners=OWNERS)
    assert again.privacy_spent(["person-1"]) >= spent  # a refit begins a round, and refunds nothing
    assert "newcomer" not in again.owners_
    again._engine.close()
    other = IndKNNClassifier(tau=0.5, sigma2=0.5, max_queries=100, store=path)
    with pytest.raises(InvalidInputError, match="made with other parameters: tau differ"):
        other.fit(RECORDS, Y[:600], owners=OWNERS)


def test_a_draft_takes_its_shape_from_the_first_records(path):
    with Store.create(path, Settings(n_features=1, classes=(), tau=0.4, reuse="none"), draft=True) as store:
        with pytest.raises(InvalidInputError, match="never held records"):
            store.predict(QUERIES)
        with pytest.raises(InvalidInputError):
            store.add(RECORDS[:5] * np.nan, Y[:5], "each-row")
        assert store.draft
        store.add(RECORDS, Y[:600], "each-row")
        assert store.settings.classes == (0, 1, 2)
    with indknn.open(path) as again:
        assert not again.draft
        assert again.settings.n_features == 8
        assert len(again.predict(QUERIES)) == 100
        assert not list(problems(again))


def test_replacing_all_records_is_all_or_nothing(store, monkeypatch):
    store.predict(QUERIES[:10])
    before, spent = everything(store), store.spent(["person-1"])
    prepared = store.settings.prepare(RECORDS[:50], Y[:50])
    with monkeypatch.context() as patch:
        patch.setattr(Change, "note_added", lambda *_: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            store.replace_all(Given(*prepared, OWNERS[:50]))
    assert everything(store) == before  # read anew from the file
    ids = store.replace_all(Given(*prepared, OWNERS[:50]))
    assert len(store.engine.shard) == len(ids) == 50
    assert (store.spent(["person-1"]) == spent).all()
    assert not list(problems(store))
    with reopened(store) as again:
        assert len(again.engine.shard) == 50
        assert not list(problems(again))


@pytest.mark.parametrize("how", ["forget", "replace"])
def test_a_write_that_fails_beside_a_change_does_not_bring_anybody_back(tmp_path, monkeypatch, how):
    """Another thread's commit fails between looking people up and changing them: memory is read anew, not half so."""
    from indknn.records.shard import Shard

    settings = Settings(n_features=2, classes=("a", "b"), tau=0.3, max_queries=100, reuse="none")
    with Store.create(tmp_path / "a", settings) as store:
        ids = store.add([[1.0, 0.0], [0.0, 1.0]], ["a", "b"], ["ann", "bob"]).tolist()
        name = "slots_of_owners" if how == "forget" else "slots_of_records"
        look, journal, threads = getattr(Shard, name), store._state.journal, []

        def fail():
            with journal.io:
                journal.failure = OSError("the disk is gone")

        def looked_up(shard, *given):
            if not threads:
                threads.append(threading.Thread(target=fail))
                threads[0].start()
                threads[0].join(0.3)
            return look(shard, *given)

        monkeypatch.setattr(Shard, name, looked_up)
        if how == "forget":
            store.forget(["ann"])
        else:
            store.upsert(Given(np.array([[0.6, 0.8]]), ["b"], ["ann"]), [ids[0]])
        monkeypatch.undo()
        in_memory = sorted(store._state.engine.ledger.owners())
        threads[0].join()
        assert sorted(store.engine.ledger.owners()) == in_memory == (["bob"] if how == "forget" else ["ann", "bob"])
        assert not list(problems(store))


def test_bad_input_that_is_told_after_somebody_was_charged_is_not_taken_for_harmless(store, monkeypatch):
    from indknn.core import mechanism

    def refuses(*_):
        raise InvalidInputError("too late")

    spent = store.spent().sum()
    with monkeypatch.context() as patch:
        patch.setattr(mechanism, "noisy_answer", refuses)
        with pytest.raises(InvalidInputError, match="too late"):
            store.predict(QUERIES[:3])
    assert store.spent().sum() == spent  # memory was read anew: nothing was answered, nothing is charged
    store.predict(QUERIES[:3])
    assert not list(problems(store))


def test_debits_of_a_very_large_store_are_folded_when_they_are_as_long_as_its_balances():
    """A fold writes the balances of everybody near any query since the last one: in a large store, of nearly everybody."""

    def length(people):
        return journal.StoreJournal.fold_bytes.fget(
            SimpleNamespace(ledger=SimpleNamespace(participation=range(people)))
        )

    assert [length(n) for n in (10, 1000, 1_000_000, 10**8)] == [256 << 10, 768_000, journal.FOLD_BYTES, 12 * 10**8]


def test_other_threads_run_while_a_transaction_is_committed(tmp_path):
    # The commit waits for the reader, and the reader can only end if the commit does not hold Python's lock.
    place = str(tmp_path / "plain")
    reader = apsw.Connection(place)
    reader.execute("CREATE TABLE t (x); INSERT INTO t VALUES (1), (2)")
    reading, writing = reader.execute("SELECT x FROM t"), threading.Event()
    next(reading)

    def end_reading():
        writing.wait()
        reading.close()

    thread = threading.Thread(target=end_reading)
    thread.start()
    db = chain.FileConnection(place)
    db.set_busy_timeout(30_000)
    with db:
        db.execute("INSERT INTO t VALUES (3)")
        writing.set()
    thread.join()
    assert db.execute("SELECT count(*) FROM t").get == 3
