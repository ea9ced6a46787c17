"""A schema that people pay for: charged once under their names, before anything leaves, and good enough to use."""

import json
from fractions import Fraction

import numpy as np
import pytest

from helpers.asking import declared
from helpers.commands import run
from indknn.core import accounting
from indknn.core.noise import SeededNoise
from indknn.errors import InvalidInputError, StoreError
from indknn.ledger import SHARED
from indknn.settings import Settings
from indknn.store import Store, chain
from indknn.store.table_counts import earlier_counts, pay_for_counts, price_of
from indknn.store.verify import problems
from indknn.tables import Category, Ignored, Number, infer
from indknn.tables import counts as grid
from indknn.tables.counts import schema_from
from indknn.types import GRID

N = 6000


def table(seed=0, n=N):
    rng = np.random.default_rng(seed)
    ill = rng.random(n) < 0.5
    return {
        "patient": [f"p{i}" for i in range(n)],
        "age": np.clip(rng.normal(40 + 20 * ill, 10), 0, 99).round().astype(int).tolist(),
        "income": np.where(rng.random(n) < 0.2, 0, np.exp(rng.normal(10, 0.7, n))).round(2).tolist(),
        "ward": np.where(rng.random(n) < 0.8, np.where(ill, "north", "south"), "west").tolist(),
        "note": [f"n{i}" for i in range(n)],
        "gap": [None] * n,
        "y": np.where(ill, "ill", "well").tolist(),
    }


def features(rows):
    return {name: values for name, values in rows.items() if name not in {"patient", "y"}}


def new_store(path, **settings):
    return Store.create(path, Settings.of(1, [], **{"epsilon": 4.0, **settings}), draft=True, noise=Recorded(5))


class Recorded(SeededNoise):
    secure = True  # only to be let in: what is tested of accuracy must not depend on luck


@pytest.fixture
def store(tmp_path):
    with new_store(tmp_path / "s.store") as made:
        yield made


def units(store, *names):
    return store.engine.ledger.spent(list(names), SHARED).tolist()


def inferred(counts, **roles):
    return schema_from(counts.names, counts.cells / GRID, counts.scale / GRID, **roles)


def test_everybody_is_charged_once_and_whoever_comes_resumes_it(store):
    rows = table()
    pay_for_counts(store, features(rows), rows["patient"])
    price = accounting.to_units(price_of(store.settings))
    charged = units(store, *rows["patient"])
    # Two numbers (two cells each) and three other columns (one each), of at most ten cells.
    assert max(charged) <= 0.7 * price + 2
    assert min(charged) >= 0.7 * price * 0.999
    assert store.engine.ledger.n_owners == 0
    assert not list(problems(store))
    path = store.path
    store.close()
    with Store(path) as again:
        assert units(again, *rows["patient"]) == charged
        schema = inferred(earlier_counts(again), label="y", classes=("ill", "well"), owner="patient").schema
        again.adopt(schema)
        again.add({name: values[:50] for name, values in rows.items()})
        assert units(again, *rows["patient"]) == charged
        assert not list(problems(again))
        again.add({**{name: values[:1] for name, values in rows.items()}, "patient": ["stranger"]})
        assert units(again, "stranger") == [0]
        again.forget(["p3"])
        assert units(again, "p3") == charged[3:4]
    with Store(path) as third:
        assert third.schema == schema
        assert units(third, *rows["patient"]) == charged
        assert third.predict({name: values[:3] for name, values in features(rows).items()}).shape == (3,)
        assert not list(problems(third))


def test_people_with_many_rows_pay_no_more(store):
    rows = table(n=300)
    owners = ["busy"] * 200 + [f"p{i}" for i in range(100)]
    counts = pay_for_counts(store, features(rows), owners)
    price = accounting.to_units(price_of(store.settings))
    busy, other = units(store, "busy", "p0")
    assert other < busy <= price
    # By all that they were charged, their rows together moved the counts by no more than one row of ten cells may.
    assert counts.scale >= np.sqrt(10 / (2 * price_of(store.settings))) * GRID


def test_one_person_changes_the_counts_by_no_more_than_they_paid(tmp_path):
    rows = table(n=200)
    owners = ["target"] * 3 + [f"p{i}" for i in range(3, 200)]
    found, others = [], []
    for first in (0, 3):  # with and without the target, under the same noise
        with new_store(tmp_path / str(first)) as store:
            some = {name: values[first:] for name, values in features(rows).items()}
            found.append(pay_for_counts(store, some, owners[first:]))
            others.append(units(store, *owners[3:]))
            if not first:
                (paid,) = accounting.from_units(np.array(units(store, "target"))).tolist()
    assert others[0] == others[1]
    assert found[0].scale == found[1].scale
    moved = (found[0].cells - found[1].cells).tolist()
    cost = Fraction(sum(step * step for step in moved), 2 * found[0].scale ** 2)
    assert 0 < cost <= Fraction(paid) <= cost * Fraction(1001, 1000)


def test_the_first_queries_are_public_rows_also_after_counts(store):
    rows = table(n=400)
    asked = {name: values[:100] for name, values in features(rows).items()}
    counts = pay_for_counts(store, features(rows), rows["patient"])
    store.adopt(inferred(counts, label="y", classes=("ill", "well"), owner="patient").schema)
    store.add(rows)
    path = store.path
    store.close()
    with Store(path) as again:
        declared(again, "ann").predict(asked, "ann")
        assert len(again.engine.predictor.model.public)
        assert not again.engine.ledger.joint  # analysts keep ledgers of their own: all have seen the counts
        rounds = again.engine.predictor.model.rounds
        again.purge()  # it begins the next round itself, so later queries, which may tell of answers, shape nothing
        again.predict({name: values[100:200] for name, values in features(rows).items()})
        assert again.engine.predictor.model.rounds == rounds == 1
        assert not again.engine.ledger.joint


def test_nothing_of_the_table_is_in_the_file_but_noisy_counts(store):
    rows = table(n=500)
    pay_for_counts(store, features(rows), rows["patient"])
    entry = chain.last(store.db)
    assert entry.kind == "answers"
    assert entry.facts["schema"] == {"columns": 5, "price": price_of(store.settings)}
    assert int(entry.facts["charged"]) == sum(units(store, *rows["patient"]))
    path = store.path
    store.close()
    body = path.read_bytes()
    assert b"north" not in body
    assert b"p499" not in body
    with Store(path) as again:
        counts = earlier_counts(again)
    exact = np.bincount(grid.cells_of(features(rows), ("",))[1], minlength=len(counts.cells))
    noise = counts.cells / GRID - exact
    assert 0.95 < noise.std() / (counts.scale / GRID) < 1.05
    assert (noise != 0).all()


def test_a_failure_to_write_leaves_neither_counts_nor_charges(store, monkeypatch):
    rows = table(n=100)

    def broken(*_, **__):
        raise OSError("the disk is gone")

    with monkeypatch.context() as patched:
        patched.setattr("indknn.store.table_counts.chain.append", broken)
        with pytest.raises(StoreError, match="the disk is gone"):
            pay_for_counts(store, features(rows), rows["patient"])
    assert earlier_counts(store) is None
    assert not store.engine.ledger.anything_spent()
    assert not store.engine.ledger.tombstones
    assert not list(problems(store))


def test_refused_before_anybody_is_charged(store, tmp_path):
    rows = table(n=20)
    for owners, words in (([None] * 20, "owner"), ([" p"] * 20, "another form")):
        with pytest.raises(InvalidInputError, match=words):
            pay_for_counts(store, features(rows), owners)
    assert not store.engine.ledger.anything_spent()
    with new_store(tmp_path / "b", mode="votes") as bare, pytest.raises(InvalidInputError, match="no shared part"):
        pay_for_counts(bare, features(rows), rows["patient"])
    schema = infer(rows, label="y", owner="patient").schema
    store.adopt(schema)
    with pytest.raises(InvalidInputError, match="a schema or records already"):
        pay_for_counts(store, features(rows), rows["patient"])
    with pytest.raises(InvalidInputError, match="takes a schema once"):
        store.adopt(schema)


def test_the_schema_is_like_one_of_a_public_sample(store):
    rows = table()
    schema = inferred(pay_for_counts(store, features(rows), rows["patient"])).schema
    public = infer(features(table(1, 1000))).schema
    age, income, ward = (schema.columns[name] for name in ("age", "income", "ward"))
    assert isinstance(age, Number)
    assert 10 < age.bounds[0] < 30
    assert 70 < age.bounds[1] < 100
    assert isinstance(income, Number)
    assert income.bounds[0] == 0
    assert 40_000 < income.bounds[1] < 300_000
    assert isinstance(ward, Category)
    assert len(ward.values) == 3
    assert ward.shares == pytest.approx((0.4, 0.4, 0.2), abs=0.05)
    assert isinstance(schema.columns["note"], Ignored)
    assert isinstance(schema.columns["gap"], Ignored)
    # How well a least-squares fit on the vectors tells the labels of rows that neither has seen.
    held, right = table(2, 3000), []
    for one in (schema, public):
        X, Q = (one.encode(features(some)) for some in (rows, held))
        weights = np.linalg.lstsq(X, np.where(np.array(rows["y"]) == "ill", 1.0, -1.0), rcond=None)[0]
        right.append(np.mean((Q @ weights > 0) == (np.array(held["y"]) == "ill")))
    assert right[0] > right[1] - 0.01


def test_from_the_command_line(tmp_path):
    rows, path = table(n=2000), tmp_path / "s.store"
    visits = tmp_path / "visits.jsonl"
    visits.write_text("\n".join(json.dumps(dict(zip(rows, row, strict=True))) for row in zip(*rows.values())))  # noqa: B905

    def told(*words, given=None, code=0):
        return run(*words, given=given, code=code).output

    told("init", path, "--epsilon", 4)
    roles = ("--paid", path, "--label", "y", "--classes", "ill,well")
    assert "--paid needs --owner" in told("schema", "infer", visits, *roles, "--yes", code=2)
    roles = (*roles, "--owner", "patient")
    said = told("schema", "infer", visits, *roles, "-o", tmp_path / "no.yaml", given="n\n", code=1)
    assert "5% of the part" in said
    with Store(path) as store:
        assert not store.engine.ledger.anything_spent()
    told("schema", "infer", visits, *roles, "-o", tmp_path / "a.yaml", "--yes")
    with Store(path) as store:
        spent = units(store, *rows["patient"])
    assert min(spent) > 0
    assert "nobody is charged again" in told("schema", "infer", visits, *roles, "-o", tmp_path / "b.yaml")
    assert (tmp_path / "a.yaml").read_text() == (tmp_path / "b.yaml").read_text()
    told("schema", "adopt", path, tmp_path / "a.yaml")
    told("add", path, visits)
    with Store(path) as store:
        assert units(store, *rows["patient"]) == spent
    assert "all is well" in told("verify", path)
