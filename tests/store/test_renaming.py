"""Store files from when an owner could be a number, a text or bytes: 7, "7" and b"7" become one person."""

import json
from zlib import crc32

import apsw
import numpy as np
import pytest

from conftest import blobs
from indknn.errors import StaleStoreError, UnknownOwnerError
from indknn.ledger.memory import MemoryLedger, joint_units
from indknn.settings import Settings
from indknn.store import Store, chain
from indknn.store.backup import backup
from indknn.store.books import Books
from indknn.store.codec import encode_name
from indknn.store.verify import problems

X, Y = blobs(200, 2, 4, seed=1)
SETTINGS = Settings(
    n_features=4, classes=(0, 1), tau=0.1, sigma2=0.9, max_queries=200, reuse="none", global_epsilon=1.2
)
HERE = {"seven": 7, "7": "7", "bytes of 7": b"7", "minus": -5, "ann": "ann", "raw": b"\xff\0", "8": "8", "nine": 9}
GONE = {"eight": 8, "ten": 10, "10": "10", "gone raw": b"\xfe\0"}
RENAMED = {"7", "-5", "ann", "ff00", "8", "9"}


def letters(name):
    """How a name was written into `owners`, without its checksum."""
    if isinstance(name, str):
        return b"s" + name.encode()
    return b"i" + str(name).encode() if isinstance(name, int) else b"b" + name


def hashed(name):
    """What was hashed of a name for its tombstone."""
    if isinstance(name, int):
        return b"i" + name.to_bytes(name.bit_length() // 8 + 1, "big", signed=True)
    return letters(name)


def aged(store, copy, version, names):
    """A copy of an open store as an older version would have written it, with older forms of some names."""
    backup(store, copy)
    db = apsw.Connection(str(copy))
    key = db.execute("SELECT value FROM meta WHERE name = 'key'").get
    ledger = MemoryLedger(1, key=key)
    for text, old in names.items():
        for number, slot, name in list(db.execute("SELECT number, slot, name FROM owners")):
            if name == encode_name(text, slot):
                body = letters(old)
                body += crc32(body, slot).to_bytes(4, "little")
                db.execute("UPDATE owners SET name = ? WHERE number = ?", (body, number))
        found = (ledger._hashed(hashed(old)), ledger.digest(text))
        db.execute("UPDATE tombstones SET digest = ? WHERE digest = ?", found)
    db.execute("DELETE FROM meta WHERE name = 'names'; UPDATE requests SET day = 0")
    if version == 3:
        Books(db, key).read()
        with db:
            chain.append(db, "fold")
    else:  # before there were books
        previous = chain.GENESIS
        for e in list(chain.entries(db)):
            body = json.dumps({k: v for k, v in e.facts.items() if k != "books"}, sort_keys=True)
            previous = chain.link(previous, e.position, e.at, e.kind, body)
            db.execute("UPDATE audit SET body = ?, hash = ? WHERE position = ?", (body, previous, e.position))
    db.close()  # and with it the triggers of the books
    db = apsw.Connection(str(copy))
    db.execute("DROP TABLE record_keys; DROP TABLE joined; DROP TABLE additions")
    db.execute("ALTER TABLE requests DROP COLUMN day")
    db.pragma("user_version", version)
    db.close()
    return copy


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """A store in use, and what everybody has spent: some are forgotten, and debits are not folded yet."""
    with Store.create(tmp_path_factory.mktemp("new") / "a", SETTINGS) as store:
        names = [*HERE, *GONE]
        store.add(X[: len(names)], Y[: len(names)], names)
        store.add(X[20:22], Y[20:22], ["seven", "7"])
        store.predict(X[100:130])
        store.forget(list(GONE))
        store.predict(X[130:140], "alice")
        assert store.db.execute("SELECT count(*) FROM debits").get
        ledger = store.engine.ledger
        spent = {n: {s: int(ledger.spent([n], s)[0]) for s in (None, "alice")} for n in names}
        assert all(sum(units.values()) > 0 for units in spent.values())
        yield store, spent


@pytest.fixture(params=[2, 3])
def old(before, tmp_path, request):
    return aged(before[0], tmp_path / "old.store", request.param, {**HERE, **GONE})


def joint(spent, *names):
    total = {}
    for scope in (None, "alice"):
        units = 0
        for name in names:
            units = joint_units(units, spent[name][scope])
        total[scope] = units
    return total


def spent_in(store, name):
    return {scope: int(store.engine.ledger.spent([name], scope)[0]) for scope in (None, "alice")}


def test_two_forms_of_a_name_are_one_person_who_is_refunded_nothing(before, old):
    spent = before[1]
    for _ in range(2):  # once, and for good
        with Store(old) as store:
            ledger = store.engine.ledger
            assert set(ledger.owners()) == RENAMED
            assert len(store.engine.shard) == 10
            assert len(store.engine.shard.slots_of_owners(["7"])) == 5
            assert spent_in(store, "7") == joint(spent, "seven", "7", "bytes of 7")
            assert spent_in(store, "8") == joint(spent, "8", "eight")  # the number was forgotten, the text is here
            assert spent_in(store, "10") == joint(spent, "ten", "10")  # both were forgotten
            for name, was in (("ann", "ann"), ("-5", "minus"), ("9", "nine"), ("ff00", "raw"), ("fe00", "gone raw")):
                assert spent_in(store, name) == spent[was]
            with pytest.raises(UnknownOwnerError):
                ledger.slots_of(["11"])
            assert not list(problems(store))
            assert [entry.kind for entry in chain.entries(store.db)].count("names") == 1


def test_who_has_spent_more_than_a_budget_by_that_takes_no_part_any_more(before, old):
    with Store(old) as store:
        ledger = store.engine.ledger
        both = joint(before[1], "seven", "7", "bytes of 7")
        assert both[None] > ledger.budget
        assert ledger.remaining(ledger.slots_of(["7"]), None).tolist() == [0]
        store.predict(X[140:180])
        assert spent_in(store, "7") == both
        store.forget([7])
        assert spent_in(store, "7") == both
        store.add(X[30:31], Y[30:31], [7])
        assert spent_in(store, "7") == both
        assert not list(problems(store))


def test_verify_takes_nobody_elses_word_for_more_than_a_budget(old):
    with Store(old) as store:
        ledger = store.engine.ledger
        for name in ("ann", "7"):  # one who was always one, and one beyond what was joined
            (slot,) = ledger.slots_of([name])
            column = ledger.column(None)
            before, column[slot] = column[slot], max(int(column[slot]), ledger.global_budget) + 1
            found = "\n".join(problems(store))
            column[slot] = before
            assert "somebody has spent more than their budget with analyst None" in found
            assert "somebody has spent more than the global budget" in found
        assert not list(problems(store))


def test_one_who_comes_back_is_joined_with_all_that_they_were(before, old):
    both = joint(before[1], "ten", "10")
    with Store(old) as store:
        store.add(X[30:31], Y[30:31], ["10"])
        assert spent_in(store, "10") == both
        assert len(store.engine.ledger.tombstones) == 1
        assert not list(problems(store))
    with Store(old) as store:
        assert spent_in(store, "10") == both
        store.forget([10])
        assert spent_in(store, "10") == both
        assert not list(problems(store))


def test_a_crash_while_renaming_leaves_the_old_file(before, old, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("indknn.store.renaming._move_records", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            Store(old)
    with Store(old) as store:
        assert spent_in(store, "7") == joint(before[1], "seven", "7", "bytes of 7")
        assert not list(problems(store))


def test_the_witness_sees_the_new_names(before, tmp_path):
    old, witness = aged(before[0], tmp_path / "old.store", 3, HERE), tmp_path / "witness"
    body = old.read_bytes()
    Store(old, witness=witness).close()
    old.write_bytes(body)
    with pytest.raises(StaleStoreError, match="old copy"):
        Store(old, witness=witness)


def test_names_that_were_text_stay_as_they_are(before, tmp_path):
    old = aged(before[0], tmp_path / "old.store", 3, {})
    with Store(old) as store:
        assert store.engine.ledger.owners() == list(HERE)
        (entry,) = (entry for entry in chain.entries(store.db) if entry.kind == "names")
        assert {key: entry.facts[key] for key in ("renamed", "joined")} == {"renamed": 0, "joined": 0}
        assert not list(problems(store))


def test_a_bit_of_an_older_file_is_still_missed(before, tmp_path):
    old = aged(before[0], tmp_path / "old.store", 3, HERE)
    db = apsw.Connection(str(old))
    body = np.frombuffer(db.execute("SELECT body FROM records WHERE slot = 3").get, dtype=np.uint8).copy()
    body[-1] ^= 1
    db.execute("UPDATE records SET body = ? WHERE slot = 3", (body.tobytes(),))
    db.close()
    with pytest.raises(Exception, match="does not agree with its audit trail"):
        Store(old)
