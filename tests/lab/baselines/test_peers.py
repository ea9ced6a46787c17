"""Other people's tools: the public pipeline and what is compared; the tools themselves where they are installed."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from conftest import blobs
from indknn import InvalidInputError
from indknn_lab.baselines import peers

ROOT = Path(__file__).parents[3]
PROMISE = 4.0, 1e-5


def test_the_pipeline_is_of_public_rows_alone():
    public = pd.DataFrame({"age": [20.0, 40.0, None], "town": ["a", "b", "a"]})
    found = peers.plain_pipeline(public).transform(pd.DataFrame({"age": [30.0, None], "town": ["b", "never seen"]}))
    deviation = np.std([20.0, 40.0, 30.0])
    np.testing.assert_allclose(found, [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]], atol=1e-12 / deviation)


def test_gaps_are_filled_from_public_rows_alone():
    public = pd.DataFrame({"age": [20.0, 40.0, None], "town": ["a", "b", None]})
    found = peers.without_gaps(pd.DataFrame({"age": [None, 90.0], "town": [None, "b"]}), public)
    assert found.to_dict("list") == {"age": [30.0, 90.0], "town": ["?", "b"]}


def test_a_class_that_is_not_among_the_rows_has_a_column():
    X, y = blobs(60, 2, 3)
    for tool in (peers.logistic, peers.trees):
        found = tool(X, 2 * y, X[:5], 4)
        assert found.shape == (5, 4)
        assert not found[:, [1, 3]].any()
        np.testing.assert_allclose(found.sum(axis=1), 1.0)


def test_what_is_missing_is_named():
    X, y = blobs(60, 2, 3)
    try:
        import opacus  # noqa: F401
    except ImportError:
        with pytest.raises(InvalidInputError, match=r"pip install 'indknn\[peers\]'"):
            peers.opacus_linear(peers.Task(X, y, X, 2, PROMISE), 1.0, 0)


def right_after_choice(tool, X, y):
    """The accuracy of a linear tool, which must choose the view that says something."""
    views = [peers.Task(rows[:2000], y[:2000], rows[2000:], 3, PROMISE) for rows in (np.ones_like(X), X)]
    view, rate = peers.choice(tool, views, 0)
    assert view == 1
    return (tool(views[view], rate, 0).argmax(axis=1) == y[2000:]).mean()


@pytest.mark.slow
def test_opacus_learns_what_is_easy():
    pytest.importorskip("opacus", reason="this compares with Opacus: pip install '.[peers]'")
    X, y = blobs(3000, 3, 8, spread=0.3)
    assert right_after_choice(peers.opacus_linear, X, y) > 0.9


def test_noisy_sgd_learns_what_is_easy():
    X, y = blobs(3000, 3, 8, spread=0.3)
    assert right_after_choice(peers.noisy_sgd, X, y) > 0.9


@pytest.mark.slow
def test_dp_ebm_learns_what_is_easy():
    pytest.importorskip("interpret", reason="this compares with DP-EBM: pip install '.[peers]'")
    X, y = blobs(3000, 2, 4, spread=0.3)
    found = peers.dp_ebm(X[:2000], y[:2000], X[2000:], PROMISE, 0)
    assert (found.argmax(axis=1) == y[2000:]).mean() > 0.9


def test_the_page_has_the_figures_of_the_run():
    kept = json.loads((ROOT / "docs" / "results" / "rivals.json").read_text())
    page = (ROOT / "docs" / "comparison.md").read_text()
    for found in kept["sets"].values():
        for scores in found.values():
            assert " ".join(f"{score:.3f}"[1:] for score in scores.values()) in page
    for name, number in kept["versions"].items():
        assert f"{name} {number}" in page
