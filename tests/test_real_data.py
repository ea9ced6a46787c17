"""Algorithm 3 on real features, against the figures of an independent prototype (one seed each, so ±0.01)."""

import numpy as np
import pytest

from indknn import IndKNNClassifier
from indknn.cli.demonstration import load_features


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
