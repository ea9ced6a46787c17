"""Records that expire, holds, and the time that both depend on."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import pytest

from cluster.histories import inline
from helpers.ledgers import took_part
from indknn.core import clock
from indknn.errors import IndKNNError, InvalidInputError
from indknn.ledger.figures import statement
from indknn.settings import Settings
from indknn.store import Store, chain
from indknn.store.backup import backup
from indknn.store.keyfile import create, read_key_file
from indknn.store.verify import problems

HOUR = 3600.0
START = 500_000 * HOUR


class Time:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.seconds = START

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    """The clock that everything reads."""
    now = Time()
    monkeypatch.setattr(clock, "seconds", now)
    return now


def made(path: Path, **values: object) -> Store:
    """A store with a few people."""
    rng = np.random.default_rng(0)
    store = Store.create(path / "a.store", Settings(3, ("no", "yes"), tau=0.1, mode="votes", **values))  # type: ignore[arg-type]
    store.add(rng.normal(size=(40, 3)), ["no", "yes"] * 20, [f"p{i}" for i in range(40)])
    return store


def test_time_never_goes_back(tmp_path: Path, time: Time) -> None:
    with made(tmp_path) as store:
        store.predict([[1.0, 0.0, 0.0]])
        assert store.engine.ledger.minute == START // 60
    time.seconds -= 10 * HOUR
    with Store(tmp_path / "a.store") as store:
        store.predict([[0.0, 1.0, 0.0]])
        assert store.engine.ledger.minute == START // 60


ROWS = np.eye(3).repeat(2, axis=0)  # two rows each near one query
NEAR = [[1.0, 0.05, 0.05]]


def two(path: Path, expires: object, **values: object) -> Store:
    """A store in which two people are near the query, one of them with a date."""
    store = Store.create(path / "a.store", Settings(3, ("no", "yes"), tau=0.5, mode="votes", **values))  # type: ignore[arg-type]
    ids = [f"r{i}" for i in range(6)]
    store.add(ROWS, ["no"] * 6, [f"p{i}" for i in range(6)], ids, expires=[expires, *[None] * 5])
    return store


def iso(seconds: float) -> str:
    """The time as ISO text."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def payers(store: Store, query: object) -> list[str]:
    """Who pays for a query."""
    owners = store.engine.ledger.owners()
    before = store.spent(owners)
    store.predict(query)
    after = store.spent(owners)  # also of those who were erased when the answer was out
    return [name for name, old, new in zip(owners, before, after, strict=True) if new > old]


def sound(store: Store) -> None:
    """Nothing is wrong with the store."""
    assert list(problems(store)) == []


def test_a_record_takes_part_until_its_hour(tmp_path: Path, time: Time) -> None:
    with two(tmp_path, iso(START + 5.5 * HOUR)) as store:  # rounded down to the hour
        time.seconds += 5 * HOUR - 1
        assert payers(store, NEAR) == ["p0", "p1"]
        time.seconds += 1
        assert payers(store, [[1.0, 0.04, 0.05]]) == ["p1"]


def test_what_has_expired_is_erased_like_a_forget(tmp_path: Path, time: Time) -> None:
    with two(tmp_path, iso(START + HOUR)) as store:
        store.predict(NEAR)
        spent = float(store.spent(["p0"])[0])
        store.add([[0.31, 0.32, 0.33]], ["yes"], ["patient nine"], expires=[iso(START + HOUR)])
        vector = store.settings.quantise([[0.31, 0.32, 0.33]], "X")
        body = vector.scale.astype("<f8").tobytes() + vector.values.tobytes()
        store.flush()
        assert any(body in file.read_bytes() for file in tmp_path.iterdir())
        time.seconds += HOUR
        assert store.expire() == 2
        sound(store)
        assert store.engine.ledger.owners() == ["p1", "p2", "p3", "p4", "p5"]
        assert store.spent(["p0"])[0] == spent > 0
        kinds = [(entry.kind, entry.facts.get("records")) for entry in chain.entries(store.db)]
        assert kinds[-2:] == [("expire", 2), ("fold", None)]
        store.add([[1, 0, 0]], ["no"], ["p0"])  # whoever comes back has what they had spent (rule 4)
        assert store.spent(["p0"])[0] == spent
    for file in tmp_path.iterdir():
        assert body not in file.read_bytes()
        assert b"patient nine" not in file.read_bytes()
    with Store(tmp_path / "a.store") as store:
        sound(store)


def test_nobody_is_told_when_bytes_are_erased(tmp_path: Path, time: Time) -> None:
    """How soon a server erases what has expired depends on how much of others has."""
    told = []
    for erased in (True, False):
        (tmp_path / str(erased)).mkdir()
        with two(tmp_path / str(erased), iso(START + HOUR)) as store:
            store.add([[1, 0, 0]], ["no"], ["p0"], ["second"])
            store.add([[1, 0, 0]], ["no"], ["p9"], ["third"], expires=iso(START + HOUR))
            store.train_in_background()  # pieces are erased between answers
            time.seconds += HOUR
            while erased and store.expire_piece(10):
                store.flush()
            told.append((statement(store.engine, "p9")["records"],))
            receipt = store.forget(record_ids=["second"])
            with pytest.raises(InvalidInputError, match="has no records here") as refused:
                store.lower("p9", 0.5)
            told[-1] += (receipt["records"], receipt["owners_forgotten"], str(refused.value))
            time.seconds -= HOUR
    assert told[0] == told[1]
    assert told[0][:3] == (0, 1, 1)


def test_opening_and_changes_erase_what_has_expired(tmp_path: Path, time: Time) -> None:
    with two(tmp_path, iso(START + HOUR)):
        pass
    time.seconds += HOUR
    with Store(tmp_path / "a.store", read_only=True) as store:
        assert len(store.engine.shard) == 6
    with Store(tmp_path / "a.store") as store:
        assert len(store.engine.shard) == 5
        store.add([[0.1, 0.2, 0.3]], ["no"], ["p7"], expires=iso(time.seconds + HOUR))
        time.seconds += 2 * HOUR
        store.add([[0.1, 0.2, 0.3]], ["no"], ["p8"])
        assert "p7" not in store.engine.ledger.owners()
        sound(store)


def test_keep_days_bounds_every_record(tmp_path: Path, time: Time) -> None:
    with two(tmp_path, iso(START + 24 * HOUR), keep_days=3) as store:
        assert store.add([[1, 0, 0]], ["no"], ["p6"], expires=iso(START + 900 * HOUR)) >= 0
        time.seconds += 24 * HOUR
        assert payers(store, NEAR) == ["p1", "p6"]
        time.seconds += 48 * HOUR
        assert payers(store, [[1, 0.01, 0.05]]) == []
        sound(store)


def test_a_clock_that_is_set_back_revives_nobody(tmp_path: Path, time: Time) -> None:
    with two(tmp_path, iso(START + HOUR)) as store:
        time.seconds += HOUR
        assert payers(store, NEAR) == ["p1"]
    time.seconds -= HOUR
    with Store(tmp_path / "a.store") as store:
        store.add([[1, 0, 0]], ["no"], ["p0"], expires=iso(START + HOUR))  # expired already
        assert payers(store, [[1, 0.01, 0.05]]) == ["p1"]


def test_rows_that_have_expired_are_not_kept(tmp_path: Path, time: Time) -> None:
    with two(tmp_path, None) as store:
        past, later = iso(START - HOUR), iso(START + HOUR)
        numbers = store.add([[1, 0, 0], [0, 1, 0]], ["no", "no"], ["a", "b"], expires=[past, later])
        assert (numbers >= 0).tolist() == [False, True]
        assert "a" not in store.engine.ledger.owners()
        table = (ROWS, ["no"] * 6, [f"p{i}" for i in range(6)], [f"r{i}" for i in range(6)])
        synced = store.sync(*table, expires=[past, later, *[None] * 4])
        assert (synced.added, synced.replaced, synced.unchanged) == (0, 1, 4)
        assert "p0" not in store.engine.ledger.owners()
        synced = store.sync(*table, expires=[past, later, *[None] * 4])  # a second time changes nothing
        assert (synced.added, synced.replaced, synced.unchanged, synced.missing) == (0, 0, 5, 0)
        sound(store)


def test_a_record_that_has_expired_is_as_good_as_gone(tmp_path: Path, time: Time) -> None:
    """What a sync does and counts does not depend on whether it was erased before."""
    table = (ROWS[:2], ["no"] * 2, ["other", "p1"], ["r0", "r1"])
    counts = []
    for erased in (True, False):
        (tmp_path / str(erased)).mkdir()
        time.seconds = START
        with two(tmp_path / str(erased), iso(START + HOUR)) as store:
            store.train_in_background()  # as a server does: nothing is erased on the way
            time.seconds += HOUR
            if erased:
                store.expire()
            counts.append(store.sync(*table, delete_missing=True))
            store.expire()
            assert sorted(store.engine.ledger.owners()) == ["other", "p1"]
            sound(store)
    assert counts[0] == counts[1]
    assert (counts[0].added, counts[0].replaced, counts[0].unchanged, counts[0].missing) == (1, 0, 1, 4)


def test_syncing_the_same_rows_does_not_prolong_them(tmp_path: Path, time: Time) -> None:
    table = (ROWS, ["no"] * 6, [f"p{i}" for i in range(6)], [f"r{i}" for i in range(6)])
    with two(tmp_path, None, keep_days=2) as store:
        time.seconds += 24 * HOUR
        assert store.sync(*table).unchanged == 6
        assert store.sync(*table, expires=iso(START + 40 * HOUR)).replaced == 6  # earlier dates count
        time.seconds += 16 * HOUR
        store.expire()
        assert not len(store.engine.shard)


def test_a_hold_keeps_bytes_and_not_participation(tmp_path: Path, time: Time) -> None:
    with two(tmp_path, iso(START + HOUR)) as store:
        store.hold("p0")
        store.hold(["p0", "p1"])
        assert store.holds == ["p0", "p1"]
        assert payers(store, NEAR) == []
        time.seconds += HOUR
        assert store.expire() == 0
        store.add([[1, 0, 0]], ["no"], ["p1"], ["new"])  # what comes later is under the hold, too
        assert payers(store, [[1, 0.04, 0.05]]) == []
    with Store(tmp_path / "a.store") as store:
        assert store.holds == ["p0", "p1"]
        assert payers(store, [[1, 0.03, 0.05]]) == []
        receipt = store.forget("p1", record_ids=["r2"])
        assert (receipt["records"], receipt["records_held"]) == (1, 2)
        store.add([[1, 0, 0]], ["no"], ["p1"], ["r1"])  # after the forget, and so not part of it
        sound(store)
        assert len(store.engine.shard) == 7
    with Store(tmp_path / "a.store") as store:
        receipt = store.release_hold(["p0", "p1"])
        assert (receipt["records"], receipt["owners_forgotten"], store.holds) == (3, 1, [])
        assert payers(store, [[1, 0.02, 0.05]]) == ["p1"]
        sound(store)
        with pytest.raises(InvalidInputError, match="none of these people is under a hold"):
            store.release_hold("p1")
        with pytest.raises(InvalidInputError, match="'p0' has no records"):
            store.hold("p0")


@pytest.mark.parametrize("shards", [0, 2])
@pytest.mark.parametrize("reopened", [False, True])
def test_the_end_of_a_hold_does_not_join_a_round_that_is_running(
    tmp_path: Path, time: Time, reopened: bool, shards: int
) -> None:
    rng, options = np.random.default_rng(0), {"make_shard": inline(shards).new_shard} if shards else {}
    settings = Settings(n_features=3, classes=("no", "yes"), max_records_per_round=4)
    store = Store.create(tmp_path / "a.store", settings, **options)
    store.add(rng.normal(size=(50, 3)), rng.choice(["no", "yes"], 50), [f"p{i}" for i in range(50)])
    store.add(rng.normal(size=(40, 3)), ["no"] * 40, ["zoe"] * 40)
    store.declare_public(rng.normal(size=(100, 3)))
    store.hold(["zoe"])
    steps = store.train()
    for _ in range(3):
        next(steps)
    store.release_hold(["zoe"])
    if reopened:
        steps.close()
        store.close()
        store = Store(tmp_path / "a.store", **options)
        steps = store.train()
    for _ in steps:
        pass
    assert store.spent(["zoe"])[0] == 0.0
    assert (store.spent(["p0", "p1"]) > 0.0).all()
    sound(store)
    store.close()


def test_a_forget_under_hold_revokes_keys_at_once(tmp_path: Path, time: Time) -> None:
    with two(tmp_path, None) as store:
        create(store.home.keys, "owner", "p0", owner="p0")
        store.hold("p0")
        assert not read_key_file(store.home.keys).keys[0].revoked
        store.forget("p0")
        assert read_key_file(store.home.keys).keys[0].revoked
        store.release_hold("p0")
        assert "p0" not in store.engine.ledger.owners()


def test_what_is_due_is_erased_in_pieces(tmp_path: Path, time: Time) -> None:
    with made(tmp_path) as store:
        rng = np.random.default_rng(1)
        store.add(rng.normal(size=(30, 3)), ["no"] * 30, [f"q{i}" for i in range(30)], expires=iso(START + HOUR))
        store.train_in_background()
        time.seconds += HOUR
        assert [store.expire(12), store.expire(12), store.expire(12), store.expire(12)] == [12, 12, 6, 0]
        sound(store)


def test_dates_are_checked_and_in_utc(tmp_path: Path, time: Time) -> None:
    with made(tmp_path) as store:
        with pytest.raises(InvalidInputError, match="row 1: expires must be a date"):
            store.add([[1, 2, 3]] * 2, ["no"] * 2, ["a", "b"], expires=["2100-01-01", "soon"])
        with pytest.raises(InvalidInputError, match="one date per row"):
            store.add([[1, 2, 3]], ["no"], ["a"], expires=["2100-01-01"] * 2)
        forms = ["2100-01-01T02:00+02:00", date(2100, 1, 1), datetime(2100, 1, 1, 0, 59), np.datetime64("2100-01-01")]
        numbers = store.add(np.eye(3)[[0, 1, 2, 0]], ["no"] * 4, list("abcd"), expires=forms)
        assert len(set(store.engine.shard.dates.of(numbers).tolist())) == 1


@pytest.mark.parametrize("folds", [0, 1, 2])
def test_balances_are_exact_while_pieces_are_erased_between_answers(tmp_path: Path, time: Time, folds: int) -> None:
    """Debits, balances, newcomers in the same slots, and folds at any moment."""
    rng = np.random.default_rng(folds)
    with made(tmp_path) as store:
        dates = [iso(START + HOUR * (1 + i % 2)) for i in range(30)]
        store.add(rng.normal(size=(30, 3)), ["no"] * 30, [f"q{i}" for i in range(30)], expires=dates)
        store.train_in_background()
        store.predict(rng.normal(size=(5, 3)), request_id="a")
        if folds:
            store.fold()
        for hour in range(2):
            time.seconds += HOUR
            for step in range(6):
                store.predict(rng.normal(size=(2, 3)))
                store.expire_piece(4)
                store.compute([])
                if step == 3:
                    sound(store)
                    store.add(rng.normal(size=(3, 3)), ["no"] * 3, [f"new {hour} {i}" for i in range(3)])
                if step == 2 + folds:
                    store.fold()
                if step == 4:
                    store.flush()
                    with Store(_copied(store, tmp_path / f"{hour}"), read_only=True) as again:
                        live = store.engine.ledger
                        assert again.engine.ledger.owners() == live.owners()
                        names = live.owners()
                        assert again.engine.ledger.spent(names, None).tolist() == live.spent(names, None).tolist()
                        assert took_part(again.engine.ledger, names) == took_part(live, names)
            sound(store)
    with Store(tmp_path / "a.store") as store:
        sound(store)


def _copied(store: Store, folder: Path) -> Path:
    folder.mkdir()
    backup(store, folder / "copy.store")
    return folder / "copy.store"


def test_a_refused_hold_does_not_read_the_store_again(tmp_path: Path, time: Time) -> None:
    with two(tmp_path, None) as store:
        before = store.generation
        for refused in (lambda: store.hold("nobody"), lambda: store.release_hold("p1")):
            with pytest.raises(IndKNNError):
                refused()
        store.forget("p5")
        with pytest.raises(InvalidInputError):
            store.hold("p5")
        assert store.generation == before
        assert len(store.engine.shard) == 5
