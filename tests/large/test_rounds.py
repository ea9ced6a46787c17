"""A round of training over very many records makes the same releases as over a few whose features are kept."""

from __future__ import annotations

import numpy as np

from indknn import IndKNNClassifier
from indknn.records import derived


def test_training_is_the_same_whether_features_are_kept_or_not(monkeypatch):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((300, 5)), np.arange(300) % 2
    X[:, 0] += 3 * y
    models = []
    for most in (derived.MOST_KEPT, 100):
        monkeypatch.setattr(derived, "MOST_KEPT", most)
        model = IndKNNClassifier(epsilon=8.0, classes=[0, 1], random_state=1, public=X[:60])
        model.fit(X, y, owners=np.arange(300) // 2)
        models.append((model.predict(X[:40]).tolist(), model.privacy_spent().tolist()))
    assert models[0] == models[1]
