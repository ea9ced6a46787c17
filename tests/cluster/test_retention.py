"""Dates and holds in a cluster: to the bit as with one shard."""

import numpy as np
import pytest

from indknn.cluster import Cluster
from indknn.cluster.links import Inline
from indknn.core import clock
from indknn.settings import Settings
from indknn.store import Store
from indknn.store.verify import problems
from indknn_lab.audits.served import Repeatable

START = 500_000 * 3600.0


@pytest.mark.parametrize("mode", ["votes", "model"])
def test_records_expire_and_are_held_as_with_one_shard(tmp_path, monkeypatch, mode):
    told = []
    for shards in (1, 2):
        now = [START]
        monkeypatch.setattr(clock, "seconds", lambda now=now: now[0])
        rng, path = np.random.default_rng(0), tmp_path / f"{mode}-{shards}.store"
        options = {"make_shard": Cluster(Inline, shards).new_shard if shards > 1 else None, "synchronous": "OFF"}
        settings = Settings(4, ("no", "yes"), tau=0.2, mode=mode, epsilon=8.0, max_queries=100)
        seen = []
        with Store.create(path, settings, noise=Repeatable(1), **options) as store:
            names = [f"p{i}" for i in range(60)]
            dates = [None if i % 3 else np.datetime64(int(START) + 3600 * (1 + i % 2), "s") for i in range(60)]
            store.add(rng.normal(size=(60, 4)), ["no", "yes"] * 30, names, expires=dates)
            store.hold(["p1", "p2"])
        with Store(path, noise=Repeatable(2), **options) as store:
            for hour in range(3):
                seen.append(store.predict(rng.normal(size=(1, 4))).tolist())
                seen.append(store.spent(names).tolist())
                now[0] += 3600
                if hour == 1:
                    store.release_hold("p1")
                store.add(rng.normal(size=(1, 4)), ["no"], ["p2"])
                seen.append(store.expire())
            assert not list(problems(store))
            assert store.spent(["p2"])[0] == 0.0
        told.append(seen)
    assert told[0] == told[1]
