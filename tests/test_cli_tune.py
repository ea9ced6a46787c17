"""Choosing parameters: for nothing on public data, or for a price that is told and confirmed."""

import json
import shlex

import numpy as np
import pytest
from click.testing import CliRunner

from conftest import blobs
from indknn.cli.app import app
from indknn.settings import Settings
from indknn.store import Store
from indknn.store.tuning.candidates import Candidate
from indknn.store.tuning.paid import Score, expected_cost
from indknn.store.tuning.public import Target, tune

X, Y = blobs(5000, 3, 8, seed=7, spread=1.2)


def run(*words, **more):
    result = CliRunner().invoke(app, [str(word) for word in words], **more)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def ok(*words):
    result = run(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def public(tmp_path):
    np.savez(tmp_path / "public.npz", X=X[:1200], y=Y[:1200])
    return tmp_path / "public.npz"


@pytest.fixture(params=["student", "none"])
def store(request, tmp_path):
    more = {} if request.param == "student" else {"sigma2": 1.5, "max_queries": 1000}
    settings = Settings(n_features=8, classes=(0, 1, 2), epsilon=2.0, reuse=request.param, **more)
    with Store.create(tmp_path / "s.store", settings) as made:
        made.add(X[:4000], Y[:4000], "each-row")
    np.savez(tmp_path / "validation.npz", X=X[4000:4300], y=Y[4000:4300])
    return tmp_path / "s.store"


def answers(store):
    with Store(store) as opened:
        return opened.db.execute("SELECT count(*) FROM answers").get, float(opened.spent().sum())


# Public


def test_public_tuning_recommends_a_line_that_makes_a_store(public, tmp_path):
    out = tmp_path / "tuned.json"
    text = ok("tune", public, "--n", 4000, "--max-queries", 300, "--epsilon", 2, "--seeds", 1, "-o", out)
    assert "Nothing was spent" in text
    assert "Extrapolated: 900 public records stand in for 4,000" in text
    facts = json.loads(out.read_text())
    assert [t["accuracy"] for t in facts["trials"]] == sorted((t["accuracy"] for t in facts["trials"]), reverse=True)
    assert {t["mode"] for t in facts["trials"]} == {"algorithm3", "student", "prior+student"}
    assert facts["init"] in text
    words = shlex.split(facts["init"].replace("STORE", str(tmp_path / "made.store")))
    ok(*words[1:])
    with Store(tmp_path / "made.store") as made:
        assert made.settings.epsilon == 2.0
        assert made.settings.max_queries == 300


def test_public_tuning_is_repeatable_and_json_is_pure(public):
    words = ("tune", public, "--max-queries", 60, "--seeds", 1, "--json")
    first = json.loads(ok(*words))
    assert first == json.loads(ok(*words))
    assert first["spent"] == 0.0


def test_rows_play_either_record_or_query():
    """With labels that are pure noise, right answers come from rows that are on both sides, and only from them."""
    rng = np.random.default_rng(0)
    noise = rng.integers(2, size=1200)
    far = np.eye(64)[rng.integers(64, size=1200)] + 0.001 * rng.normal(size=(1200, 64))
    candidate = Candidate("algorithm3", 0.015, 0.01)
    found = tune(far, noise, Target(n=1200, epsilon=100.0, max_queries=300), [candidate], seeds=3)
    assert abs(found.best.accuracy - 0.5) < 0.12


@pytest.mark.parametrize("crowd", [20_000, 3_000])
def test_a_stand_in_of_any_size_foretells_the_store(crowd, monkeypatch):
    """The same store, foretold by a third of its records, as many people or scaled; unscaled it would be .13 lower."""
    monkeypatch.setattr("indknn.store.tuning.public.CROWD", crowd)
    bigX, bigY = blobs(14000, 3, 8, seed=9, spread=1.2)
    candidate, aim = Candidate("algorithm3", 0.03, 1.0), Target(n=10000, epsilon=0.5, max_queries=1000)
    small = tune(bigX[:4000], bigY[:4000], aim, [candidate], seeds=3)
    whole = tune(bigX, bigY, aim, [candidate], seeds=3)
    assert (small.stand_in, small.people) == (3000, min(crowd, 10000))
    assert whole.stand_in == 10000
    assert small.best.sigma2 == whole.best.sigma2  # what the store is told does not hang on the stand-in
    assert abs(small.best.accuracy - whole.best.accuracy) < 0.05


def test_bad_public_sets_are_named(tmp_path, public):
    np.savez(tmp_path / "few.npz", X=X[:50], y=Y[:50])
    np.savez(tmp_path / "bare.npz", X=X[:500])
    for words, complaint in (
        ((tmp_path / "few.npz",), "tuning needs at least 200 labelled public rows, got 50"),
        ((tmp_path / "bare.npz",), "has no labels"),
        ((public, "--n", 10**9), "a stand-in of 20000 people cannot be stretched to n=1000000000"),
        ((public, "--yes"), "--yes goes with --paid FILE"),
        ((public, "--max-queries", "0"), "max_queries must be at least 1, got 0"),
    ):
        result = run("tune", *words)
        assert result.exit_code == 2
        assert complaint in result.output
        assert "Traceback" not in result.output


# Paid


def test_nothing_is_spent_before_it_is_confirmed(store, tmp_path, monkeypatch):
    words = ("tune", store, "--paid", tmp_path / "validation.npz")
    refused = run(*words)
    assert refused.exit_code == 2
    assert "300 validation queries, 300 of them new" in refused.output
    assert "of their budget" in refused.output
    assert "--yes" in refused.output
    assert answers(store) == (0, 0.0)

    monkeypatch.setattr("indknn.cli.paid._at_a_terminal", lambda: True)
    declined = run(*words, input="n\n")
    assert declined.exit_code == 2
    assert "nothing was spent" in declined.output
    assert answers(store) == (0, 0.0)
    accepted = run(*words, input="y\n")
    assert accepted.exit_code == 0, accepted.output
    assert answers(store)[0] >= 300


def test_paid_tuning_measures_charges_and_is_not_charged_twice(store, tmp_path):
    words = ("tune", store, "--paid", tmp_path / "validation.npz", "--yes", "--json")
    first = json.loads(ok(*words))
    total = first["scores"]["all"]
    assert total["of"] == 300
    assert total["interval"][0] < total["accuracy"] < total["interval"][1]
    assert total["accuracy"] > 0.5
    assert sum(s["of"] for name, s in first["scores"].items() if name != "all") == 300
    paid = answers(store)
    assert paid[1] > 0
    again = json.loads(ok(*words))
    assert again["scores"] == first["scores"]
    assert again["cost"] == {"share_of_budget": 0.0, "rho": 0.0, "at_most": False, "fresh_queries": 0}
    assert answers(store) == paid
    assert "nothing will be spent" in ok(*words[:4])  # so nobody is asked to confirm
    predicted = json.loads(ok("predict", store, tmp_path / "validation.npz", "-o", tmp_path / "a.npz", "--json"))
    assert predicted["answered"] == 300  # the transcript has them, for nothing
    assert answers(store) == paid
    assert (np.load(tmp_path / "a.npz")["y"] == Y[4000:4300]).sum() == total["right"]


def test_a_crash_half_way_pays_for_the_rest_alone(store, tmp_path, monkeypatch):
    asked = []
    whole = Store.predict

    def dies(self, Q, *args, **kwargs):
        if asked:
            raise KeyboardInterrupt
        asked.append(len(Q))
        return whole(self, Q, *args, **kwargs)

    words = ["tune", str(store), "--paid", str(tmp_path / "validation.npz"), "--yes", "--json"]
    monkeypatch.setattr(Store, "predict", dies)
    assert CliRunner().invoke(app, words).exit_code != 0
    monkeypatch.undo()
    half, _ = answers(store)
    assert 0 < half < 300
    facts = json.loads(ok(*words))
    assert facts["cost"]["fresh_queries"] == 300 - asked[0]
    assert facts["scores"]["all"]["of"] == 300


def test_the_price_told_is_about_what_is_paid(store):
    with Store(store) as opened:
        cost = expected_cost(opened, X[4000:4300], records=4000)
        assert cost.fresh == 300
        opened.predict(X[4000:4300])
        paid = float(opened.spent().mean())
        assert cost.rho == pytest.approx(cost.share * opened.settings.budget)
        if opened.settings.advised:
            assert cost.most
            assert 0.5 * cost.rho < paid < 1.1 * cost.rho
            assert cost.sums == pytest.approx(0.5 + 0.03 * 2)
        else:
            assert not cost.most
            assert 0.6 * cost.rho < paid < 1.4 * cost.rho
            assert expected_cost(opened, X[4300:4600]).most  # without n: a bound, by the floor under K


def test_the_price_does_not_depend_on_anybodys_budget(store):
    with Store(store) as opened:
        before = expected_cost(opened, X[4000:4300], records=4000)
        opened.predict(X[4300:4600], "somebody else")
        assert expected_cost(opened, X[4000:4300], records=4000) == before
        opened.forget(opened.engine.ledger.owners()[:2000])
        assert expected_cost(opened, X[4000:4300], records=4000) == before


def test_labels_that_cannot_be_are_told_before_anything_is_spent(store, tmp_path):
    np.savez(tmp_path / "odd.npz", X=X[4000:4300], y=np.full(300, 7))
    result = run("tune", store, "--paid", tmp_path / "odd.npz", "--yes")
    assert result.exit_code == 2
    assert "7" in result.output
    assert answers(store) == (0, 0.0)


def test_wilson_is_a_real_interval():
    assert Score(0, 0).interval == (0.0, 1.0)
    assert Score(50, 50).interval[1] == pytest.approx(1.0)
    assert Score(50, 50).interval[0] == pytest.approx(0.9287, abs=1e-3)
