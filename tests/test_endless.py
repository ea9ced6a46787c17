"""Queries without end: what answers from releases, in memory and in a store."""

import numpy as np
import pytest

import indknn
from conftest import blobs
from indknn import InvalidInputError
from indknn.core.noise import SeededNoise
from indknn.core.releases import ModelOnly, MomentsRelease, TallyRelease, Votes, decode, encode
from indknn.engine import Engine
from indknn.models import adviser as module
from indknn.settings import Settings
from indknn.store import Store
from indknn.store.reports import status
from indknn.store.verify import problems

X, Y = blobs(6000, 3, 10, spread=0.9)
RECORDS, LABELS, QUERIES, TRUTH = X[:4500], Y[:4500], X[4500:], Y[4500:]
SETTINGS = Settings(n_features=10, classes=(0, 1, 2), max_queries=None, reuse="student", prior="statistics")


def engine(settings=SETTINGS, seed=0, **options):
    made = Engine(settings, SeededNoise(seed), **options)
    made.add(RECORDS, LABELS, [f"person-{i // 2}" for i in range(4500)])
    return made


def test_it_goes_on_long_after_algorithm_3_is_spent():
    hopeless = engine(
        Settings(n_features=10, classes=(0, 1, 2), max_queries=100, reuse="none", tau=0.5, sigma2=0.05), seed=1
    )
    endless = engine(seed=1)
    late = slice(1000, 1500)
    for model in (hopeless, endless):
        model.predict(QUERIES[:1000])
    assert (hopeless.predict(QUERIES[late]) == TRUTH[late]).mean() < 0.6
    assert (endless.predict(QUERIES[late]) == TRUTH[late]).mean() > 0.85
    assert endless.spent().max() <= SETTINGS.budget


def test_sure_answers_charge_nobody():
    model = engine()
    model.predict(QUERIES[:300])
    adviser = model.predictor.adviser()
    assert 0 < adviser.asked < 300  # some were answered alone
    before = model.spent()
    alone = [i for i in range(300, 500) if not _asks(adviser, QUERIES[i : i + 1])]
    assert len(alone) > 10
    model.predict(QUERIES[alone[:10]])
    assert (model.spent() == before).all()


def _asks(adviser, Q):
    return bool(adviser.advise(SETTINGS.quantise(Q, "Q")).ask[0])


def test_without_a_prior_the_student_starts_from_votes_and_counts_a_few():
    model = engine(Settings(n_features=10, classes=(0, 1, 2), max_queries=600, reuse="student", prior="none"))
    accuracy = (model.predict(QUERIES[:600]) == TRUTH[:600]).mean()
    adviser = model.predictor.adviser()
    assert accuracy > 0.8
    assert adviser.moments is None
    assert 1000 < adviser.density.records < 20000  # from the few counts that were released


def test_a_prior_without_a_student():
    model = engine(Settings(n_features=10, classes=(0, 1, 2), max_queries=600, reuse="none", prior="statistics"))
    assert (model.predict(QUERIES[:600]) == TRUTH[:600]).mean() > 0.85


def test_fresh_records_join_the_statistics_and_pay_alone(monkeypatch):
    monkeypatch.setattr(module, "FRESH_EVERY", 50)
    model = engine()
    model.predict(QUERIES[:60])
    adviser = model.predictor.adviser()
    held = adviser.moments.n
    rng = np.random.default_rng(9)
    fresh = RECORDS[:3000] + 0.01 * rng.normal(size=(3000, 10))
    model.add(fresh, LABELS[:3000], [f"late-{i}" for i in range(3000)])
    old, new = [f"person-{i}" for i in range(2250)], [f"late-{i}" for i in range(3000)]
    before = model.spent(old)
    model.predict(QUERIES[60:160])
    assert adviser.moments.n == pytest.approx(held + 3000, rel=0.1)
    assert model.spent(new).min() > 0.3 * SETTINGS.budget  # their share of the statistics, once
    assert (model.spent(old) - before).max() < 0.3 * SETTINGS.budget  # nobody paid for them twice
    assert (model.spent(old) - before).mean() < 0.1 * SETTINGS.budget


def test_the_statistics_are_paid_by_every_record_there_is():
    model = engine()
    model.predict(QUERIES[:1])
    share = model.spent() / SETTINGS.budget
    assert share.min() > 0.3  # people here have two records each, clipped to the price of one
    assert np.median(share) <= 0.6


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"reuse": "everything"}, "reuse must be one of 'student', 'labels', 'none', got 'everything'"),
        ({"reuse": True}, "reuse must be one of 'student', 'labels', 'none', got True"),
        ({"prior": "oracle"}, "prior must be one of"),
        ({"prior": "statistics", "reuse": "labels"}, "goes with reuse='none' or 'student', got 'labels'"),
        ({"prior": "statistics", "prior_share": 1.0}, "prior_share must be above 0 and below 1, got 1.0"),
        ({"prior": "statistics", "n_features": 5000}, "at most 4096 features, got 5000"),
        ({"reuse": "student", "n_features": 5000}, "use reuse='none' and prior='none'"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(options, complaint):
    with pytest.raises(InvalidInputError, match=complaint):
        Settings(**{"n_features": 2, "classes": (0, 1), **options})


def test_releases_survive_being_written():
    votes = Votes(5 << 20, 7, 0, 0.25, 0.5, np.array([3, -1, -2]))
    moments = MomentsRelease(0, 1, 10, 20, 2, np.array([1, 2, 3]), np.array([4, 5, 6, 7]))
    for release in (ModelOnly(), votes, moments, TallyRelease(2, 9, np.arange(20))):
        again = decode(encode(release))
        assert type(again) is type(release)
        assert encode(again) == encode(release)


class TestStore:
    """The same, durable."""

    @pytest.fixture
    def store(self, tmp_path):
        with Store.create(tmp_path / "people.store", SETTINGS) as made:
            made.add(RECORDS, LABELS, [f"person-{i}" for i in range(4500)])
            yield made

    def test_all_that_was_learned_survives_reopening(self, store):
        store.predict(QUERIES[:700])
        old = store.engine.predictor.adviser()
        store.close()
        with indknn.open(store.path) as again:
            new = again.engine.predictor.adviser()
            assert not list(problems(again))
            assert (new.answered, new.asked, new.since) == (old.answered, old.asked, old.since)
            assert new.left == pytest.approx(old.left)
            assert (new.moments.A == old.moments.A).all()
            assert new.trust.cards[0].right.tolist() == old.trust.cards[0].right.tolist()
            spent = again.spent()
            assert (again.predict(QUERIES[:700]) == store_answers(again)).all()
            assert (again.spent() == spent).all()  # repeats are free
            assert (again.predict(QUERIES[700:900]) == TRUTH[700:900]).mean() > 0.85
            assert again.spent().min() < spent.min() + 0.2 * SETTINGS.budget  # no second statistics

    def test_records_know_after_reopening_that_they_were_in_the_statistics(self, store):
        store.predict(QUERIES[:10])
        store.add(RECORDS[:5], LABELS[:5], [f"new-{i}" for i in range(5)])
        store.close()
        with indknn.open(store.path) as again:
            slots = again.engine.shard.record_ids() & 0xFFFFFFFF
            epochs = again.engine.shard.epochs_of(slots)
            assert (epochs == 1).sum() == 5
            assert again.engine.shard.epoch == 1

    def test_after_a_purge_and_a_restart_nobody_is_taken_for_fresh(self, store):
        store.predict(QUERIES[:10])
        store.add(RECORDS[:5], LABELS[:5], [f"new-{i}" for i in range(5)])
        store.purge()
        store.close()
        with indknn.open(store.path) as again:
            again.predict(QUERIES[:10])  # statistics of all who are here
            epochs = again.engine.shard.epochs_of(again.engine.shard.record_ids() & 0xFFFFFFFF)
            assert epochs.max() < again.engine.predictor.adviser().since

    def test_status_counts_answers_not_sums(self, store):
        store.predict(QUERIES[:40])
        facts = status(store)
        assert facts["answers"] == 40
        assert facts["exhausted"] == 0
        left = facts["forecast"]["queries_left_for_median_owner"]
        assert left is None or left > 40  # the statistics, half of everybody's budget, were paid for once

    def test_forgetting_keeps_what_was_released_and_a_purge_drops_it(self, store):
        store.predict(QUERIES[:200], request_id="r")
        kept = store.forget(["person-7"])
        assert "kept" in kept["released"]
        assert store.engine.predictor.adviser().answered == 200
        spent = store.spent(["person-7", "person-8"])
        assert "everybody" in store.purge()["public"]
        assert not list(problems(store))
        assert store.db.execute("SELECT count(*) FROM answers WHERE release IS NOT NULL").get == 0
        assert store.db.execute("SELECT count(*) FROM requests").get == 0
        store.close()
        with indknn.open(store.path) as again:
            assert not list(problems(again))
            assert again.engine.predictor.adviser().answered == 0
            assert (again.spent(["person-7", "person-8"]) == spent).all()  # nothing is refunded
            again.predict(QUERIES[:3], request_id="r2")
            assert again.spent(["person-8"])[0] > spent[1]  # those who remain pay for new statistics
            assert not list(problems(again))


def store_answers(store):
    rows = store.db.execute("SELECT label FROM answers WHERE label >= 0 ORDER BY seq")
    return np.array([label for (label,) in rows])
