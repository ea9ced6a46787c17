"""Choosing parameters on public data, for nothing."""

import json
import shlex

import numpy as np
import pytest

from conftest import blobs
from helpers.commands import run
from indknn.store import Store
from indknn_lab.tuning import Candidate, Target, tune

X, Y = blobs(5000, 3, 8, seed=7, spread=1.2)


def ok(*words):
    return run(*words, code=0).stdout


@pytest.fixture
def public(tmp_path):
    np.savez(tmp_path / "public.npz", X=X[:1200], y=Y[:1200])
    return tmp_path / "public.npz"


def test_public_tuning_recommends_a_line_that_makes_a_store(public, tmp_path):
    out = tmp_path / "tuned.json"
    text = ok("tune", public, "--n", 4000, "--max-queries", 300, "--epsilon", 2, "--seeds", 1, "-o", out)
    assert "Nothing was spent" in text
    assert "Extrapolated: 900 public records stand in for 4,000" in text
    facts = json.loads(out.read_text())
    assert [t["accuracy"] for t in facts["trials"]] == sorted((t["accuracy"] for t in facts["trials"]), reverse=True)
    assert {t["mode"] for t in facts["trials"]} == {"votes", "model"}
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
    candidate = Candidate("votes", 0.015, 0.01)
    found = tune(far, noise, Target(n=1200, epsilon=100.0, max_queries=300), [candidate], seeds=3)
    assert abs(found.best.accuracy - 0.5) < 0.12


@pytest.mark.parametrize("crowd", [20_000, 3_000])
def test_a_stand_in_of_any_size_foretells_the_store(crowd, monkeypatch):
    """The same store, foretold by a third of its records, as many people or scaled; unscaled it would be .13 lower."""
    monkeypatch.setattr("indknn_lab.tuning.CROWD", crowd)
    bigX, bigY = blobs(14000, 3, 8, seed=9, spread=1.2)
    candidate, aim = Candidate("votes", 0.03, 1.0), Target(n=10000, epsilon=0.5, max_queries=1000)
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
        ((public, "--n", 10**9), "a public set that plays 20000 people is too small for n=1000000000"),
        ((public, "--max-queries", "0"), "max_queries must be at least 1, got 0"),
    ):
        result = run("tune", *words)
        assert result.exit_code == 2
        assert complaint in result.output
        assert "Traceback" not in result.output
