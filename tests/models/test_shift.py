"""Newcomers are looked for early when people ask about other things than before: by queries alone, and not often."""

import numpy as np
import pytest

import indknn
from indknn.core.noise import SeededNoise
from indknn.core.releases import PublicRows
from indknn.engine import Engine
from indknn.models.adviser import LATEST, Density, Earlier
from indknn.settings import Settings
from indknn.store import Store

CENTRES = np.random.default_rng(0).normal(size=(4, 12))
SETTINGS = Settings(n_features=12, classes=(0, 1, 2, 3))


def rows(classes, n, seed, spread=0.7):
    """Labels and rows of these classes, in no order."""
    rng = np.random.default_rng(seed)
    y = rng.choice(classes, n)
    return CENTRES[y] + spread * rng.normal(size=(n, 12)), y


def values(X):
    return SETTINGS.quantise(X, "X").values


class TestEarlier:
    @pytest.mark.parametrize("d", [2, 12, 300])
    def test_queries_that_are_spread_alike_do_not_differ(self, d):
        rng = np.random.default_rng(d)
        X = rng.normal(size=(4 * LATEST + 300 * LATEST, d)) * np.linspace(0.1, 2.0, d) + 1.0
        all_values = Settings(n_features=d, classes=(0, 1)).quantise(X, "X").values
        earlier = Earlier.of(all_values[: 4 * LATEST])
        later = all_values[4 * LATEST :].reshape(300, LATEST, d)
        assert not any(earlier.unlike(block) for block in later)

    def test_a_quarter_of_queries_of_another_kind_is_noticed(self):
        earlier = Earlier.of(values(rows([0, 1, 2], 4 * LATEST, 1)[0]))
        new, old = rows([3], LATEST // 4, 2)[0], rows([0, 1, 2], 3 * LATEST // 4, 3)[0]
        assert earlier.unlike(values(np.concatenate([new, old])))
        assert not earlier.unlike(values(rows([0, 1, 2], LATEST, 4)[0]))

    def test_where_queries_always_came_in_clumps_another_clump_is_nothing_new(self):
        clumps = np.concatenate([rows([i], LATEST, i)[0] for i in (0, 1, 2, 0)])
        assert not Earlier.of(values(clumps)).unlike(values(rows([1], LATEST, 9)[0]))

    def test_equal_queries_are_no_error(self):
        same = np.ones((4 * LATEST, 12), dtype=np.int8)
        assert not Earlier.of(same).unlike(same[:LATEST])
        assert Earlier.of(same).unlike(np.eye(12, dtype=np.int8)[np.zeros(LATEST, dtype=int)])


class Stream:
    """An engine, queries in batches, and at which of them newcomers were looked for."""

    def __init__(self, engine, analyst=None, through=None, asked=0):
        self.through, self.analyst, self.asked, self.looks = through or engine, analyst, asked, []
        absorb = engine.predictor._absorb

        def watch(release):
            if isinstance(release, PublicRows):
                self.looks.append(self.asked)
            absorb(release)

        engine.predictor._absorb = watch

    def ask(self, X, y, step=50):
        right = []
        for i in range(0, len(X), step):
            right.append(np.asarray(self.through.predict(X[i : i + step], analyst=self.analyst)) == y[i : i + step])
            self.asked += len(X[i : i + step])
        return float(np.concatenate(right).mean())


def engine_of(classes, n=2000, seed=0):
    model = Engine(SETTINGS, SeededNoise(1))
    model.add(*rows(classes, n, seed), [f"old {i}" for i in range(n)])
    return model


def add_newcomers(model):
    model.add(*rows([3], 800, 5), [f"new {i}" for i in range(800)])


def test_a_new_class_is_learned_soon_after_the_first_queries_about_it():
    model = engine_of([0, 1, 2])
    stream = Stream(model)
    stream.ask(*rows([0, 1, 2], 2600, 1))  # the schedule looks at 2,500, and then at 3,125
    assert stream.looks[-1] == 2500
    add_newcomers(model)
    stream.ask(*rows([0, 1, 2, 3], 300, 2))
    assert 2600 < stream.looks[-1] < 2900
    assert stream.ask(*rows([3], 100, 3)) > 0.8
    assert model.spent().max() <= SETTINGS.budget


def test_at_most_one_look_is_early_between_two_by_the_schedule(monkeypatch):
    """Every look costs people something, so whoever asks must not be able to cause many of them."""
    by_schedule, early = Stream(engine_of([0, 1, 2])), Stream(engine_of([0, 1, 2]))
    X, y = rows([0, 1, 2], 4000, 1)
    by_schedule.ask(X, y)
    monkeypatch.setattr(Density, "unlike_marked", lambda self: True)
    early.ask(X, y)
    assert by_schedule.looks == [0, 300, 550, 800, 1050, 1300, 1600, 2000, 2500, 3150, 3950]
    more = sorted(set(early.looks) - set(by_schedule.looks))
    assert more == [1900, 2300, 2800, 3450]  # 256 after a look; where intervals are shorter than that, none fits in


def test_when_newcomers_are_looked_for_does_not_depend_on_the_records():
    found = []
    for model in (engine_of([0, 1, 2]), engine_of([0, 1, 2, 3], n=700, seed=3)):
        stream = Stream(model)
        stream.ask(*rows([0, 1, 2], 1700, 1))
        stream.ask(*rows([3], 300, 2))
        found.append(stream.looks)
    assert found[0] == found[1]
    assert found[0][-1] > 1600


def test_queries_of_named_analysts_make_no_early_look():
    model = engine_of([0, 1, 2])
    stream = Stream(model, "ann")
    stream.ask(*rows([0, 1, 2], 1700, 1))
    stream.ask(*rows([3], 300, 2))
    assert stream.looks == [0]


def test_a_store_that_was_closed_in_between_looks_at_the_same_moment(tmp_path):
    found = []
    for parts in ((1650,), (1500, 150)):
        path, asked, (X, y) = tmp_path / f"{len(parts)}.store", 0, rows([0, 1, 2], 1650, 1)
        with Store.create(path, SETTINGS) as store:
            store.add(*rows([0, 1, 2], 2000, 0), [f"old {i}" for i in range(2000)])
        for n in parts:
            with indknn.open(path) as store:
                Stream(store.engine, through=store, asked=asked).ask(X[asked : asked + n], y[asked : asked + n])
                asked += n
        with indknn.open(path) as store:
            stream = Stream(store.engine, through=store, asked=asked)
            stream.ask(*rows([3], 300, 2))
            found.append(stream.looks)
    assert found[0] == found[1]
    assert [1650 < look < 1950 for look in found[0]] == [True]
