"""What a curator is told once, in one line, with what to do; and that nobody else is told."""

import json
import warnings

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from conftest import blobs
from helpers.commands import run
from indknn import IndKNNClassifier, PrivacyWarning
from indknn.core.advice import Profile
from indknn.settings import Settings
from indknn.store import Store
from indknn.tables import infer
from server.serving import application

X, Y = blobs(400, 3, 6, seed=2)
X = X + np.arange(6)  # far from having mean 0
RNG = np.random.default_rng(8)
PLAIN = {"tau": 0.5, "classes": [0, 1, 2]}


def told(call):
    """The warnings of a call, as text."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    assert all("\n" not in str(one.message) for one in caught)
    assert all(one.filename == __file__ for one in caught)  # where the user's code is, not ours
    return {str(one.message): one.category for one in caught}


def standardised(rows):
    return (rows - rows.mean(axis=0)) / rows.std(axis=0)


def test_a_careful_curator_is_told_nothing(tmp_path):
    public_mean = blobs(300, 3, 6, seed=9)[0].mean(axis=0) + np.arange(6)
    for rows in (X, X - X.mean(axis=0) + 0.05, standardised(np.concatenate([X, X[:60] + 2]))[:400]):
        assert not told(lambda rows=rows: IndKNNClassifier(**PLAIN, center=public_mean).fit(rows, Y))
    few = standardised(X[:20])  # too few to tell
    assert not told(lambda: IndKNNClassifier(**PLAIN).fit(few, Y[:20]))


def test_a_label_set_that_was_taken_from_private_labels():
    """Row 11 of the review: `classes` were taken from private y without a word."""
    model = IndKNNClassifier(tau=0.5)
    ((text, category),) = told(lambda: model.fit(X, Y)).items()
    assert "label set was taken from the private labels" in text
    assert "give classes yourself" in text
    assert category is PrivacyWarning
    assert not told(lambda: model.fit(X, Y))  # once


@pytest.mark.parametrize("near", [0.0, 1e-6])
def test_a_center_that_is_the_private_mean(near):
    ((text, category),) = told(lambda: IndKNNClassifier(**PLAIN, center=X.mean(axis=0) + near).fit(X, Y)).items()
    assert "center is the mean of the private rows" in text
    assert category is PrivacyWarning


def test_features_that_were_standardised_by_the_private_rows():
    for rows in (standardised(X), standardised(X).astype(np.float32), np.column_stack([standardised(X), np.ones(400)])):
        ((text, category),) = told(lambda rows=rows: IndKNNClassifier(**PLAIN).fit(rows, Y)).items()
        assert "look standardised by the private rows" in text
        assert category is PrivacyWarning


def test_features_that_were_centred_or_stretched_by_the_private_rows():
    """What a step of a pipeline that was fitted on the same rows leaves behind."""
    uneven = X * np.arange(1, 7) + 5.0
    public = uneven[::2] + 0.01 * np.arange(200)[:, None]  # other rows, from the same distribution
    for step, words in (
        (PCA(), "look centred by"),
        (MinMaxScaler(), "runs from 0 to 1"),
        (StandardScaler(), "look standardised"),
    ):
        own = step.fit_transform(uneven)
        ((text, category),) = told(lambda rows=own: IndKNNClassifier(**PLAIN).fit(rows, Y)).items()
        assert words in text
        assert category is PrivacyWarning
        fitted = step.fit(public).transform(uneven)
        assert not told(lambda rows=fitted: IndKNNClassifier(**PLAIN).fit(rows, Y))
    steps = RNG.integers(0, 5, size=(400, 6)) / 4.0  # a scale with known ends, and yes or no
    for rows in (steps, (steps > 0.5) + 0.0):
        profile = Profile()
        profile.see(rows)
        assert not profile.advice(None)


def test_a_schema_that_was_inferred_from_the_private_rows():
    table = {"age": RNG.normal(50, 9, 800), "pay": RNG.lognormal(9, 1, 800), "job": RNG.choice(["a", "b", "c"], 800)}
    y = RNG.integers(3, size=800)
    half = (
        {name: column[:400] for name, column in table.items()},
        {name: column[400:] for name, column in table.items()},
    )
    ((text, category),) = told(
        lambda: IndKNNClassifier(**PLAIN, schema=infer(half[1]).schema).fit(half[1], y[400:])
    ).items()
    assert "use constants from public rows" in text
    assert category is PrivacyWarning
    assert not told(lambda: IndKNNClassifier(**PLAIN, schema=infer(half[0]).schema).fit(half[1], y[400:]))


def test_answers_that_are_all_the_same():
    model = IndKNNClassifier(**PLAIN, epsilon=8.0, random_state=0).fit(X, np.zeros(400, dtype=int))
    ((text, category),) = told(lambda: model.predict(X[:200])).items()
    assert text.startswith("all 200 answers are '0': ")
    assert category is UserWarning


def test_a_delta_that_lets_somebody_down():
    model = IndKNNClassifier(**PLAIN, delta=1 / 400)
    ((text, category),) = told(lambda: model.fit(X, Y)).items()
    assert text == "delta = 0.0025 is at least 1/n for n = 400 people: make it much smaller than 0.0025"
    assert category is PrivacyWarning
    assert not told(lambda: model.partial_fit(X[:5], Y[:5]))  # once, when it comes to that
    assert not told(lambda: IndKNNClassifier(**PLAIN, delta=1 / 401).fit(X, Y))


def test_a_feature_that_outweighs_all_others():
    rows = X * np.array([1, 1, 1, 5e4, 1, 1])
    ((text, category),) = told(lambda: IndKNNClassifier(**PLAIN).fit(rows, Y)).items()
    assert "feature 3 outweighs all others: scale the features by public constants" in text
    assert category is UserWarning
    assert not told(lambda: IndKNNClassifier(**PLAIN).fit(rows[:, [3]], Y))


def test_rows_that_come_in_pieces_are_judged_as_a_whole(tmp_path):
    rows = standardised(X)
    profile = Profile()
    for low in range(0, 400, 90):
        profile.see(rows[low : low + 90])
    assert len(profile.advice(None)) == 1
    settings = Settings(n_features=6, classes=(0, 1, 2), tau=0.5)
    with Store.create(tmp_path / "a", settings) as store:
        parts = [(rows[i : i + 90], Y[i : i + 90], range(i, min(i + 90, 400))) for i in range(0, 400, 90)]
        assert len(told(lambda: store.add_batches(parts))) == 1


def test_the_command_line_says_it_in_a_line_each(tmp_path):
    np.savez(tmp_path / "a.npz", X=standardised(X), y=Y, owners=np.arange(400))
    store = tmp_path / "a.store"
    assert run("init", str(store), "--tau", "0.5", "--delta", "0.01").exit_code == 0
    result = run("add", str(store), str(tmp_path / "a.npz"), "--json")
    assert json.loads(result.stdout) == {
        "expired": 0,
        "added": 400,
        "replaced": 0,
        "unchanged": 0,
        "records": 400,
        "owners": 400,
    }
    lines = result.stderr.splitlines()
    assert len(lines) == 3
    for line, words in zip(lines, ("standardised", "delta = 0.01", "label set"), strict=True):
        assert line.startswith("indknn: ")
        assert words in line


def test_over_http_it_goes_to_who_adds_and_to_nobody_else(tmp_path):
    settings = Settings(n_features=1, classes=(), tau=0.5, delta=0.02, reuse="none", max_queries=100)
    rows = standardised(X[:80])
    body = {
        "records": [
            {"features": x.tolist(), "label": int(y), "owner": i}
            for i, (x, y) in enumerate(zip(rows, Y[:80], strict=True))
        ]
    }
    with (
        Store.create(tmp_path / "a", settings, draft=True) as store,
        application(store, roles=("curator", "analyst")) as c,
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            answer = c("POST", "/v1/records", c.keys["curator"], json=body).json()
            assert [line.split()[1] for line in answer["warnings"]] == ["label", "features", "="]
            session = c("GET", "/v1/session", c.keys["analyst"]).text
            assert not any(line in session for line in answer["warnings"])
            asked = c.ask(X[:1] - X.mean(axis=0), key=c.keys["analyst"])
        assert asked.status_code == 200
        assert "warn" not in asked.text


def test_of_rows_too_large_to_square_nothing_is_said():
    profile = Profile()
    profile.see(np.full((200, 3), 1e200) * np.arange(1, 201)[:, None])
    assert profile.advice(None) == []
