"""Small histories in every mode, played through the estimator, the engine, the store and the HTTP service.

`python -m golden.transcripts` (with `tests` on the path) writes `transcripts.json`; the test plays the histories again
and compares. Only public names are imported, so that the code behind them may move.
"""

import asyncio
import hashlib
import json
import tempfile
import warnings
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import httpx
import numpy as np

from helpers.asking import declared
from indknn import IndKNNClassifier, IndKNNRegressor
from indknn.core import clock
from indknn.engine import Engine, Settings
from indknn.server.app import create_app
from indknn.store import Store

KEPT = Path(__file__).with_name("transcripts.json")
CLASSES = ("a", "b", "c")
FEATURES = 8

ALGORITHM3 = {"reuse": "none", "mode": "votes", "max_queries": 60, "tau": 0.4, "sigma2": 0.4}
MODELS = {"reuse": "none", "mode": "model", "model_share": 0.9, "max_queries": None}
NUMBERS = {"target": "number", "bounds": (0.0, 12.0)}
MODES = {
    "algorithm 3": ALGORITHM3,
    "algorithm 3, rdp": {**ALGORITHM3, "accountant": "rdp"},
    "algorithm 3, rbf": {**ALGORITHM3, "kernel": "rbf", "tau": 0.6},
    "algorithm 3, rbf with lengths": {**ALGORITHM3, "kernel": "rbf", "bandwidth": 4.0, "normalize": False},
    "algorithm 3, tau and sigma2 from queries": {**ALGORITHM3, "tau": None, "sigma2": None},
    "algorithm 3, one record a query": {**ALGORITHM3, "max_records_per_query": 1},
    "algorithm 3, repeats are charged": {**ALGORITHM3, "free_repeats": False},
    "algorithm 3, a global budget": {**ALGORITHM3, "global_epsilon": 2.2},
    "algorithm 3, centred": {**ALGORITHM3, "center": (0.1,) * FEATURES},
    "hashing": {**ALGORITHM3, "index": "lsh"},
    "sketch": {**ALGORITHM3, "index": "sketch"},
    "reuse of labels": {**ALGORITHM3, "reuse": "labels"},
    "numbers, algorithm 3": {**ALGORITHM3, **NUMBERS},
    "numbers, one record a query and reuse": {**ALGORITHM3, **NUMBERS, "reuse": "labels", "max_records_per_query": 1},
    "numbers, the shared model": {**MODELS, **NUMBERS},
    "numbers, the shared model and votes": {**MODELS, **NUMBERS, "model_share": 0.5, "tau": 0.3, "sigma2": 0.02},
    "the shared model": MODELS,
    "the shared model and votes": {**MODELS, "model_share": 0.5, "max_queries": 60, "tau": 0.3, "sigma2": 0.1},
}
OVER_TIME = {"pace_days": 20, "renew_days": 40, "i_understand": "epsilon per period"}
TIMED = {
    "promises and dates": {**ALGORITHM3},
    "promises and dates, the shared model": {**MODELS, "model_share": 0.5, "tau": 0.3, "sigma2": 0.1},
    "promises and dates, numbers": {**MODELS, **NUMBERS, "model_share": 0.5, "tau": 0.3, "sigma2": 0.02},
    "pace and periods": {**ALGORITHM3, **OVER_TIME},
    "pace and periods, the shared model": {**MODELS, **OVER_TIME, "model_share": 0.5, "tau": 0.3, "sigma2": 0.1},
    "pace and periods, numbers": {**ALGORITHM3, **NUMBERS, **OVER_TIME},
}
"""Modes in which some people were promised less, records expire, and time goes by."""
DAY = 86_400.0
START = 20_000 * DAY
INDEX_OPTIONS = {"lsh": {"seed": 0, "n_tables": 30, "n_bits": 8}, "sketch": {"seed": 0, "n_bits": 512}}


class Replayed:
    """Reproducible noise that a store takes for secure. For tests alone."""

    secure = True

    def __init__(self):
        self._rng = np.random.default_rng(7)

    def draw(self, scale, size):
        """`size` values of round(scale·Z)."""
        num, den = scale.as_integer_ratio()
        return np.rint(self._rng.standard_normal(size) * (num / den)).astype(np.int64)


def data(mode=()):
    """Records of people with one to three each, and queries."""
    rng = np.random.default_rng(3)
    centres = rng.normal(size=(3, FEATURES))
    y = rng.integers(3, size=900)
    X = centres[y] + 0.8 * rng.normal(size=(900, FEATURES))
    said = np.array(CLASSES)[y[:700]]
    if "bounds" in mode:
        said = 5.0 + X[:700, 0] + y[:700]
    return X[:700], said, [f"p{i}" for i in rng.integers(400, size=700)], X[700:]


def written(answers):
    """Labels as one text. Numbers as a digest."""
    values = [value for part in answers for value in np.asarray(part).tolist()]
    return "".join(values) if isinstance(values[0], str) else fingerprint(values)


def settings(mode):
    """The settings of a mode, with nothing left to defaults that may change."""
    common = {"n_features": FEATURES, "classes": () if "bounds" in mode else CLASSES, "epsilon": 1.0, "delta": 1e-5}
    return Settings(**common, **mode, index_options=INDEX_OPTIONS.get(mode.get("index"), {}))


def history(model, forget, mode):
    """Answers, additions, erasures of both kinds, a return and a second analyst; what came of it."""
    X, y, owners, Q = data(mode)
    declared(model, "ann").add(X[:600], y[:600], owners[:600])
    told = [
        model.predict(Q[:40]),
        *(model.predict(Q[i : i + 1]) for i in range(40, 60)),
        model.predict(Q[10:90], "ann"),
        model.predict(Q[:50]),  # repeats
    ]
    model.add(X[600:], y[600:], owners[600:])
    forget(["p1", "p2"])
    told.append(model.predict(Q[90:130]))
    model.add(X[:3], y[:3], ["p1", "p1", "somebody new"])
    told += [model.predict(Q[130:170]), model.predict(Q[170:190], "ann")]
    forget(["p3"])
    model.purge()
    told += [model.predict(Q[:30]), model.predict(Q[80:100], "ann")]
    names = [*sorted(set(owners)), "somebody new"]
    return {
        "labels": written(told),
        **{f"charges{who or ''}": fingerprint(model.spent(names, who).tolist()) for who in (None, "ann")},
    }


def timed_history(model, mode, now):
    """The same in the course of 90 days: every fifth person was promised less, and every third record expires."""
    X, y, owners, Q = data(mode)

    def given(first, end):
        days = [first // 12 + 10 + i % 50 for i in range(first, end)]
        dates = [datetime.fromtimestamp(START + day * DAY, UTC).isoformat() for day in days]
        return {
            "expires": [date if i % 3 == 0 else None for i, date in enumerate(dates)],
            "epsilons": [0.25 if int(owner[1:]) % 5 == 0 else None for owner in owners[first:end]],
        }

    declared(model, "ann").add(X[:600], y[:600], owners[:600], **given(0, 600))
    told = [model.predict(Q[:30]), model.predict(Q[30:60], "ann")]
    for turn in range(6):
        now[0] = START + (15 * turn + 15) * DAY
        model.renew_if_due()  # the operator has the round run that a period begins
        for _ in model.go_on() if isinstance(model, Store) else model.predictor.training():
            pass
        told += [model.predict(Q[60 + 20 * turn : 80 + 20 * turn]), model.predict(Q[:10], "ann")]
        if turn == 1:
            model.lower(owners[1], 0.5)
            model.add(X[600:], y[600:], owners[600:], **given(600, 700))
    names, ledger = sorted(set(owners)), model.engine.ledger if isinstance(model, Store) else model.ledger
    return {
        "labels": written(told),
        "periods": ledger.period,
        **{f"charges{who or ''}": fingerprint(ledger.spent_in_all(names, who).tolist()) for who in (None, "ann")},
    }


@contextmanager
def in_time():
    """The clock stands still, and is moved by hand."""
    now, real = [START], clock.seconds
    clock.seconds = lambda: now[0]
    try:
        yield now
    finally:
        clock.seconds = real


def by_engine(mode):
    """The history through the engine."""
    model = Engine(settings(mode), Replayed())
    return history(model, model.forget_owners, mode)


def timed_by_engine(mode):
    """The history over time through the engine."""
    with in_time() as now:
        return timed_history(Engine(settings(mode), Replayed()), mode, now)


def timed_by_store(mode):
    """The history over time through a store, with a restart at its end."""
    with tempfile.TemporaryDirectory() as folder, in_time() as now:
        path = Path(folder) / "people.store"
        with Store.create(path, settings(mode), noise=Replayed()) as store:
            told = timed_history(store, mode, now)
        with Store(path) as store:
            names = sorted(store.engine.ledger.owners())
            return told | {"people": len(names), "left": fingerprint(store.engine.ledger.spent(names, "ann").tolist())}


def by_store(mode):
    """The history through a store, and what its file then holds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "people.store"
        with Store.create(path, settings(mode), noise=Replayed()) as store:
            told = history(store, store.forget, mode)
        with Store(path) as store:
            # The noisy votes of Algorithm 3 were not kept at first. What it answers and charges is what it was.
            kept = "CASE WHEN substr(release, 1, 1) = x'4e' THEN NULL ELSE release END"
            rows = store.db.execute(f"SELECT seq, scope, query, scale, label, charged, {kept} FROM answers")
            told["answers"] = fingerprint(list(rows))
    return told


def by_estimator(mode):
    """The history through the estimator, under a seed."""
    given = {name: value for name, value in mode.items() if name not in {"center", "target"}}
    X, y, owners, Q = data(mode)
    kind, given = (IndKNNRegressor, given) if "bounds" in mode else (IndKNNClassifier, {**given, "classes": CLASSES})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = kind(random_state=5, center=mode.get("center"), **given)
        model.fit(X[:600], y[:600], owners[:600])
        told = [model.predict(Q[:40]), model.predict(Q[20:70], analyst="ann")]
        model.partial_fit(X[600:], y[600:], owners[600:])
        model.forget(["p1", "p2"])
        told.append(model.predict(Q[40:120]))
        model.forget(records=model.new_record_ids_[:5])
        told.append(model.predict(Q[120:160]))
    return {
        "labels": written(told),
        "charges": fingerprint(model.privacy_spent(sorted(set(owners))).tolist()),
        "tau": model.tau_,
    }


def by_service(mode):
    """Queries over HTTP through the worker: one at a time, so that batches are always the same."""
    X, y, owners, Q = data(mode)
    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(Path(folder) / "people.store", settings(mode), noise=Replayed())
        store.add(X, y, owners)
        if store.settings.advised:  # a service trains between answers, whenever there is time
            for _ in store.train():
                pass
        app = create_app(store)
        labels = asyncio.run(_asked(app, Q))
        app.service.close()
        charges = fingerprint(store.spent(sorted(set(owners))).tolist())
        store.close()
    return {"labels": labels, "charges": charges}


async def _asked(app, Q):
    told = []
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        for rows in (Q[:1], Q[1:30], *(Q[i : i + 1] for i in range(30, 60)), Q[20:40], Q[60:124]):
            tensor = {"name": "features", "shape": list(rows.shape), "datatype": "FP64", "data": rows.ravel().tolist()}
            answer = await client.post("/v2/models/indknn/infer", json={"inputs": [tensor]})
            told.append(answer.json()["outputs"][0]["data"])
    return written(told)


def fingerprint(values):
    """A short digest of plain values."""
    return hashlib.sha256(repr(values).encode()).hexdigest()[:24]


ROADS = {"engine": by_engine, "store": by_store, "estimator": by_estimator, "service": by_service}
TIMED_ROADS = {"engine": timed_by_engine, "store": timed_by_store}
CASES = [*product(ROADS, MODES), *product(TIMED_ROADS, TIMED)]


def play(road, mode):
    """The transcript of one mode on one road."""
    return TIMED_ROADS[road](TIMED[mode]) if mode in TIMED else ROADS[road](MODES[mode])


if __name__ == "__main__":
    found = json.loads(KEPT.read_text())  # what is kept stays: delete what should change
    found |= {name: play(road, mode) for road, mode in CASES if (name := f"{road}: {mode}") not in found}
    KEPT.write_text(json.dumps(found, indent=1) + "\n")
