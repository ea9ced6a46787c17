"""The records that tests of this folder share."""

import numpy as np

from indknn.settings import Settings

SETTINGS = Settings(n_features=4, classes=("a", "b"), tau=0.2, max_queries=1000, reuse="none", mode="votes")
RNG = np.random.default_rng(3)
X = RNG.normal(size=(60, 4))
Y = RNG.choice(["a", "b"], size=60)
NAMES = [f"p{i // 2}" for i in range(60)]
