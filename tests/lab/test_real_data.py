"""Real data: Algorithm 3 against an independent prototype (one seed each, so ±0.01), and forecasts that must be kept."""

import numpy as np
import pandas as pd
import pytest

from indknn import IndKNNClassifier
from indknn.models.forecast import advised_stream, forecast
from indknn.tables import infer
from indknn_lab.datasets import load_features


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("T", "tau", "sigma2", "prototype"),
    [(800, 0.30, 0.4, 0.88), (2000, 0.25, 0.4, 0.88), (7600, 0.20, 0.7, 0.866)],
)
def test_ag_news_with_the_papers_filter(shared_data, T, tau, sigma2, prototype):
    data = load_features(shared_data / "agnews-minilm.npz")
    queries = np.random.default_rng(0).permutation(len(data.y_test))[:T]
    model = IndKNNClassifier(
        epsilon=1.0, delta=1e-5, accountant="rdp", reuse="none", max_queries=T, tau=tau, sigma2=sigma2, random_state=0
    ).fit(data.X_train, data.y_train)
    accuracy = model.score(data.X_test[queries], data.y_test[queries])
    spread = 2.5 * np.sqrt(prototype * (1 - prototype) / T)  # of a sample of T queries
    assert accuracy == pytest.approx(prototype, abs=0.01 + spread)
    assert model.privacy_spent().max() <= model.budget_


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.parametrize(("name", "asked"), [("shuttle", 16_000), ("letters", 4_000)])
def test_a_stream_keeps_what_the_forecast_promised(shared_data, name, asked):
    """No block of queries falls below the forecast that the model's report card makes, but for chance."""
    table = pd.read_csv(shared_data / "tabular" / f"{name}.csv.gz").sample(frac=1.0, random_state=3)
    public, queries, private = table[:1_000], table[1_000 : 1_000 + asked], table[1_000 + asked :]
    model = IndKNNClassifier(
        schema=infer(public, label="label").schema,
        classes=sorted(table["label"].unique()),
        public=public.drop(columns="label"),
        random_state=0,
    ).fit(private)
    features, truth = queries.drop(columns="label"), queries["label"].to_numpy()
    model.predict(features[:10])
    promised = forecast(advised_stream(model._memory.predictor.adviser(), np.zeros(0)))
    least = promised.accuracy_alone - 2.0 * promised.accuracy_alone_error
    right = model.predict(features) == truth
    for block in right.reshape(-1, 2_000):
        assert block.mean() > least - 3.0 * np.sqrt(least * (1.0 - least) / len(block))
