"""The shared model of a durable store: it survives reopening, stops, failures and purges."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

import indknn
from helpers.asking import declared
from helpers.people import ASKING, LABELS, NAMES, QUERIES, RECORDS, SETTINGS, TRUTH, X, Y, train
from indknn import InvalidInputError
from indknn.answering import predictor as answering
from indknn.core.noise import SecureNoise
from indknn.core.releases import Gradient, PublicRows, decode
from indknn.models.forecast import forecast
from indknn.store import Store
from indknn.store.chain import entries
from indknn.store.reports import status, stream
from indknn.store.verify import problems


class FailingNoise(SecureNoise):
    """Noise that breaks off once, after so many draws."""

    def __init__(self, after):
        super().__init__()
        self.left = after

    def draw(self, scale, size):
        self.left -= 1
        if self.left == -1:
            raise RuntimeError("no entropy")
        return super().draw(scale, size)


def gradients(store):
    """Those in the file."""
    rows = store.db.execute("SELECT release FROM answers WHERE release IS NOT NULL ORDER BY seq")
    return [one for one in (decode(text) for (text,) in rows) if isinstance(one, Gradient)]


class TestStore:
    """The same, durable."""

    @pytest.fixture
    def store(self, tmp_path, known_noise):
        with Store.create(tmp_path / "people.store", SETTINGS) as made:
            declared(made, "ann").add(RECORDS, LABELS, NAMES)
            yield made

    def test_all_that_was_learned_survives_reopening(self, store):
        told = store.predict(QUERIES[:200])
        old, adviser, spent = store.engine.predictor.model, store.engine.predictor.adviser(), store.spent()
        store.close()
        with indknn.open(store.path) as again:
            new = again.engine.predictor.model
            assert not list(problems(again))
            assert (new.weights.whole == old.weights.whole).all()
            assert (new.count, new.since, new.rounds, new.due()) == (old.count, old.since, old.rounds, None)
            assert new.card.right.tolist() == old.card.right.tolist()
            assert (new.card.other, new.card.overall) == (old.card.other, old.card.overall)
            assert again.engine.predictor.adviser().answered == adviser.answered == 200
            assert (again.predict(QUERIES[:200]) == told).all()
            assert (again.predict(QUERIES[200:400]) == TRUTH[200:400]).mean() > 0.85
            assert (again.spent() == spent).all()  # neither repeats nor a second training

    def test_votes_survive_reopening(self, tmp_path):
        with Store.create(tmp_path / "votes.store", ASKING) as store:
            declared(store, "ann").add(RECORDS, LABELS, NAMES)
            told = store.predict(QUERIES[:128], "ann")
            old, spent = store.engine.predictor.adviser("ann"), store.spent()
        with indknn.open(store.path) as again:
            new = again.engine.predictor.adviser("ann")
            assert (new.answered, new.asked, new.kappa) == (old.answered, old.asked, old.kappa)
            assert new.asked > 0
            assert (again.predict(QUERIES[:128], "ann") == told).all()
            assert (again.spent() == spent).all()

    def test_a_round_that_was_stopped_goes_on_where_it_was(self, store):
        for progress in store.train():
            if progress.made == 5:
                steps = progress.made + progress.follow
                break
        spent, weights = store.spent(), store.engine.predictor.model.weights.whole
        store.close()
        with indknn.open(store.path) as again:
            assert (again.spent() == spent).all()
            assert (again.engine.predictor.model.weights.whole == weights).all()
            assert not again.engine.predictor.model.ready
            again.predict(QUERIES[:3])  # which trains the rest
            assert [one.step for one in gradients(again)] == list(range(steps))
            assert again.spent().max() <= SETTINGS.shared_budget
            assert not list(problems(again))

    def test_a_round_that_fails_wastes_nothing_that_was_written(self, tmp_path):
        with Store.create(tmp_path / "s.store", SETTINGS, noise=FailingNoise(6)) as store:  # a count, then gradients
            store.add(RECORDS, LABELS, NAMES)
            with pytest.raises(RuntimeError, match="no entropy"):
                train(store)
            assert len(gradients(store)) == 5
            made = train(store)
            assert [one.step for one in gradients(store)] == list(range(made))
            assert store.engine.predictor.model.ready
            assert not list(problems(store))

    def test_answers_come_between_the_pieces_of_a_round(self, store):
        pieces = store.train()
        while next(pieces).made < 3:
            pass
        store.train_in_background()
        assert len(store.predict(QUERIES[:4], "ann")) == 4  # by votes alone
        assert store.engine.predictor.adviser("ann").asked == 4
        for _ in pieces:
            pass
        assert store.engine.predictor.model.ready
        assert not list(problems(store))

    def test_somebody_forgotten_in_the_middle_of_a_round_is_gone_from_the_rest(self, store):
        pieces = store.train()
        while next(pieces).made < 3:
            pass
        store.forget(["person-7"])
        spent = store.spent(["person-7"])
        for _ in pieces:
            pass
        assert (store.spent(["person-7"]) == spent).all()
        assert not list(problems(store))

    def test_records_know_after_reopening_that_they_were_in_a_round(self, store):
        train(store)
        store.add(X[3000:3005], Y[3000:3005], [f"new-{i}" for i in range(5)])
        store.close()
        with indknn.open(store.path) as again:
            shard = again.engine.shard
            assert (shard.epochs_of(shard.slots()) >= again.engine.predictor.model.since).sum() == 5

    def test_after_a_purge_and_a_restart_nobody_is_taken_for_a_newcomer(self, store):
        store.predict(QUERIES[:10])
        store.add(X[3000:3005], Y[3000:3005], [f"new-{i}" for i in range(5)])
        store.purge()
        store.close()
        with indknn.open(store.path) as again:
            again.predict(QUERIES[:10])  # a model of all who are here
            shard = again.engine.shard
            assert shard.epochs_of(shard.slots()).max() < again.engine.predictor.model.since

    def test_forgetting_keeps_what_was_released_and_a_purge_drops_it(self, store):
        store.predict(QUERIES[:100], request_id="r")
        kept = store.forget(["person-7"])
        assert "kept" in kept["released"]
        assert store.engine.predictor.model.ready
        spent = store.spent(["person-7", "person-8"])
        assert "everybody" in store.purge()["public"]
        assert not list(problems(store))
        (first, *_) = store.db.execute(
            "SELECT substr(release, 1, 1) FROM answers WHERE release IS NOT NULL ORDER BY seq"
        )
        assert first == (PublicRows.kind,)  # the next round, which the purge began and finished
        assert store.db.execute("SELECT count(*) FROM requests").get == 0
        store.close()
        with indknn.open(store.path) as again:
            assert not list(problems(again))
            assert again.engine.predictor.model.ready
            assert again.spent(["person-7"])[0] == spent[0]  # nothing is refunded
            again.predict(QUERIES[:3], request_id="r")
            assert again.spent(["person-8"])[0] > spent[1]  # those who remain pay for a new model
            assert again.spent().max() <= SETTINGS.budget
            assert not list(problems(again))

    def test_that_queries_shaped_the_model_survives_reopening_and_a_purge(self, tmp_path, monkeypatch):
        monkeypatch.setattr(answering, "SCHEDULE_FIRST", 40)
        with Store.create(tmp_path / "s.store", ASKING) as store:
            store.add(RECORDS, LABELS, NAMES)
            store.predict(QUERIES[:60])
            store.predict(QUERIES[60:62])
            assert store.engine.ledger.joint
        for change in (Store.flush, Store.purge, Store.flush):
            with indknn.open(store.path) as again:
                assert again.engine.ledger.joint
                assert not list(problems(again))
                change(again)

    def test_opening_a_store_begins_no_round(self, store):
        first = answering.SCHEDULE_FIRST
        store.predict(QUERIES[:first])
        store.predict(QUERIES[first : first + 1])
        assert store.engine.ledger.joint
        spent = store.spent()
        store.close()
        with indknn.open(store.path) as again:
            again.predict(QUERIES[first + 1 : first + 2])
            assert (again.spent() == spent).all()

    def test_status_counts_answers_and_not_steps_of_training(self, store):
        store.predict(QUERIES[:40])
        facts = status(store)
        assert facts["answers"] == 40
        assert facts["analysts"] == [""]
        assert facts["exhausted"] == 0
        assert facts["forecast"]["words"] == "no end in sight"  # nobody was asked
        assert 0.0 < facts["one_analyst"]["spent"] <= SETTINGS.shared_budget

    def test_a_forecast_tells_what_the_model_is_worth_and_that_it_stays(self, store):
        assert forecast(stream(store)).accuracy_alone is None
        store.predict(QUERIES[:200])
        found = forecast(stream(store))
        assert not found.ends
        assert (found.left, found.asked_share) == (1.0, 0.0)
        assert found.until_half is found.until_used_up is None
        later = (store.predict(QUERIES[200:1200]) == TRUTH[200:1200]).mean()
        assert later > found.accuracy_alone - 2.0 * found.accuracy_alone_error
        assert forecast(stream(store, "ann")).accuracy_alone == found.accuracy_alone  # it is everybody's

    def test_public_rows_are_declared_once_and_before_the_first_answer(self, store):
        store.declare_public(np.concatenate([X[3000:3100], X[3000:3001]]))
        (told,) = [entry for entry in entries(store.db) if entry.kind == "public"]
        rows = SETTINGS.quantise(X[3000:3100], "public").values
        assert told.facts["sha256"] == hashlib.sha256(rows.tobytes()).hexdigest()
        with pytest.raises(InvalidInputError, match="public rows are declared once, before the first answer"):
            store.declare_public(X[3000:3100])
        store.close()
        with indknn.open(store.path) as again:
            again.predict(QUERIES[:60])
            assert (again.engine.predictor.model.public == rows).all()
            assert not list(problems(again))

    def test_labels_of_public_rows_survive_reopening_and_a_purge(self, store):
        store.declare_public(np.concatenate([X[3000:3100], X[3000:3001]]), np.append(Y[3000:3100], Y[3000]))
        store.predict(QUERIES[:60])
        old = store.engine.predictor.model
        assert old._start is not None
        store.close()
        with indknn.open(store.path) as again:
            new = again.engine.predictor.model
            assert (new.weights.whole == old.weights.whole).all()
            assert (new._start == old._start).all()
            again.purge()
            again.predict(QUERIES[:60])
            assert again.engine.predictor.model._start is not None
            assert not list(problems(again))

    def test_public_rows_have_no_labels_before_the_classes_are_known(self, tmp_path):
        with (
            Store.create(tmp_path / "draft.store", replace(SETTINGS, classes=()), draft=True) as draft,
            pytest.raises(InvalidInputError, match="labels only if the classes are known"),
        ):
            draft.declare_public(X[3000:3100], Y[3000:3100])

    def test_public_rows_come_too_late_after_the_first_answer(self, store):
        store.predict(QUERIES[:2])
        with pytest.raises(InvalidInputError, match="declared once, before the first answer"):
            store.declare_public(X[3000:3100])
        assert store.engine.predictor.public is None
