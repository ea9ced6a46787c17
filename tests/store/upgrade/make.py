"""How the store files beside this one came about: `python make.py version-5`, with the last code before 1.0.0rc1.

Do not run it again for the same version: an *older* program must have written the files. Before the format of a store
changes, run it with the code as it is then, under a new name, and add that name to the test.
"""

import gzip
import json
import sys
from pathlib import Path

import numpy as np

from indknn.settings import Settings
from indknn.store import Store

FEATURES, RECORDS, QUESTIONS = 6, 240, 24
FORGOTTEN = ("person-3", "person-50", "person-77")
MODES = {"model": {}, "votes": {"prior": "none", "reuse": "labels", "max_queries": 100, "global_epsilon": 3.0}}


def rows(n, seed):
    """Made-up rows around one of two points, and which."""
    rng = np.random.default_rng(seed)
    y = rng.choice(["healthy", "ill"], n)
    return rng.normal(size=(n, FEATURES)) + np.where(y == "ill", 1.0, -1.0)[:, None], y


def write(name, mode, options):
    """Two analysts were answered, a model was trained, one analyst is given less, people were forgotten."""
    X, y = rows(RECORDS, 1)
    Q, _ = rows(QUESTIONS, 2)
    owners = [f"person-{i // 2}" for i in range(RECORDS)]  # two records each
    path = Path(f"{name}-{mode}.store")
    with Store.create(path, Settings(FEATURES, ("healthy", "ill"), epsilon=2.0, tau=0.3, **options)) as store:
        store.add(X, y, owners, record_ids=[f"visit-{i}" for i in range(RECORDS)])
        if mode == "model":
            store.declare_public(rows(100, 3)[0])
            store.give_less("bob", 1.95)
            list(store.train())
        answers = {who: store.predict(Q, who, request_id=f"{who}-1").tolist() for who in ("alice", "bob")}
        likely = store.predict_proba(Q[:5], "alice", request_id="alice-2").tolist()
        spent = dict(zip(owners, store.spent(owners).tolist(), strict=True))
        store.forget(FORGOTTEN)
        left = len(store.engine.shard.slots())
    path.with_suffix(".json").write_text(
        json.dumps({"answers": answers, "likely": likely, "spent": spent, "records": left}) + "\n"
    )
    path.with_suffix(".store.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    for part in path.parent.glob(f"{path.name}*"):
        if part.suffix != ".gz":
            part.unlink()


if __name__ == "__main__":
    for mode, options in MODES.items():
        write(sys.argv[1], mode, options)
