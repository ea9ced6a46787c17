"""A batch of requests is answered exactly as if they had come one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indknn.answering.predictor import Predictor
from indknn.answering.requests import Reply, Request
from indknn.core.noise import SeededNoise
from indknn.engine import Engine
from indknn.errors import RequestConflictError
from indknn.settings import Settings
from indknn.store.reports import answers_by_analyst
from indknn.store.verify import problems
from server.serving import make_store

POOL = np.random.default_rng(0).normal(size=(12, 4))


def engine(**changes):
    options = {"n_features": 4, "classes": ("a", "b"), "tau": 0.3, "epsilon": 2.0, "max_queries": 60, **changes}
    made = Engine(Settings(**{"reuse": "none", **options}), SeededNoise(3))
    rng = np.random.default_rng(1)
    made.add(rng.normal(size=(80, 4)), rng.choice(["a", "b"], size=80), [f"p{i % 50}" for i in range(80)])
    return made


requests = st.lists(
    st.tuples(st.lists(st.integers(0, 11), min_size=1, max_size=5), st.sampled_from([None, "alice", "bob"])),
    min_size=1,
    max_size=8,
)


@given(requests, st.booleans(), st.sampled_from(["none", "labels"]), st.sampled_from([0.3, None]))
@settings(max_examples=40)
@pytest.mark.filterwarnings("ignore:tau was not given")
def test_as_if_one_by_one(asked, free_repeats, reuse, tau):
    one, many = (engine(free_repeats=free_repeats, reuse=reuse, tau=tau) for _ in range(2))
    requests = [Request(one.settings.quantise(POOL[numbers], "Q"), analyst) for numbers, analyst in asked]
    expected = [reply.labels.tolist() for request in requests for reply in one.predictor.compute([request])]
    assert [reply.labels.tolist() for reply in many.predictor.compute(requests)] == expected
    assert one.ledger.scopes == many.ledger.scopes
    for scope in one.ledger.scopes:
        assert np.array_equal(one.ledger.column(scope), many.ledger.column(scope))


def ask(store, number, analyst=None, name=None):
    return Request(store.settings.quantise(POOL[number : number + 1], "Q"), analyst, name)


def fresh(batch):
    return [outcome.fresh if isinstance(outcome, Reply) else 0 for outcome in batch.outcomes]


def test_ids_within_and_across_batches(tmp_path):
    with make_store(tmp_path / "a", free_repeats=False) as store:
        asked = [ask(store, 1, name="x"), ask(store, 1, name="x"), ask(store, 2, name="x"), ask(store, 1)]
        first = store.compute(asked)
        first.commit()
        assert first.outcomes[0].labels.tolist() == first.outcomes[1].labels.tolist()
        assert isinstance(first.outcomes[2], RequestConflictError)
        assert fresh(first) == [1, 0, 0, 1]
        again = store.compute(asked[:3])
        assert again.outcomes[0].labels.tolist() == first.outcomes[0].labels.tolist()
        assert isinstance(again.outcomes[2], RequestConflictError)
        assert fresh(again) == [0, 0, 0]
        assert answers_by_analyst(store) == {None: 2}
        assert not list(problems(store))


def test_a_batch_is_charged_before_it_is_told(tmp_path):
    """Nothing of a batch is on disk before its commit, all of it after."""
    with make_store(tmp_path / "a") as store:
        batch = store.compute([ask(store, i, "alice", f"{i}") for i in range(6)])
        assert store.db.execute("SELECT count(*) FROM answers").get == 0
        batch.commit()
        assert store.db.execute("SELECT count(*) FROM answers").get == 6
        assert store.db.execute("SELECT count(*) FROM audit WHERE kind = 'answers'").get == 1  # one transaction
        assert not list(problems(store))


def test_after_a_crash_of_the_computation_the_store_reads_itself_anew(tmp_path, monkeypatch):
    with make_store(tmp_path / "a") as store:
        store.compute([ask(store, 0)]).commit()
        spent = store.engine.ledger.column(None).copy()

        def broken(*_):
            raise MemoryError

        with monkeypatch.context() as patch:
            patch.setattr(Predictor, "_reply", broken)
            with pytest.raises(MemoryError):
                store.compute([ask(store, 1), ask(store, 2)])
        assert np.array_equal(store.engine.ledger.column(None), spent)
        store.compute([ask(store, 1)]).commit()
        assert not list(problems(store))


def test_steps_of_training_are_not_counted_as_answers(tmp_path):
    """They are released within a request, and must not use up the number of answers of whoever came first."""
    with make_store(tmp_path / "a", mode="model", max_queries=None, tau=None) as store:
        batch = store.compute([ask(store, 1, "alice"), ask(store, 2, "alice")])
        batch.commit()
        assert fresh(batch) == [1, 1]
        assert store.db.execute("SELECT count(*) FROM answers").get > 2
        assert answers_by_analyst(store) == {"alice": 2}
        store.purge()
        assert answers_by_analyst(store) == {"alice": 2}
