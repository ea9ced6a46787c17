"""The three roads by which people are served, with one face: an engine in memory, a durable store, the server's worker.

Calls whose form may change are wrapped here once: names of owners, ids of records, purging, statements.
"""

import asyncio

import numpy as np

from indknn.core.releases import encode
from indknn.engine import Engine
from indknn.errors import InvalidInputError
from indknn.ledger import SHARED
from indknn.ledger.figures import statement
from indknn.models.forecast import advised_stream, forecast
from indknn.server.metrics import Metrics
from indknn.server.problems import Problem
from indknn.server.worker import Worker
from indknn.store import Store
from indknn.store.database import read_answers
from indknn.store.intake import Item
from indknn.store.outlook import stream
from indknn.store.reports import answers_by_analyst
from indknn.store.verify import problems
from indknn_lab.audits.served import finish_training

ROADS = ("engine", "store", "server")
REFUSALS = (InvalidInputError, Problem)
_RECEIPT = ("records", "owners_forgotten", "kept", "owners", "on_the_books")  # what else is in it depends on time


class Road:
    """One model. `rows` are (owner, features, label)."""

    def __init__(self, name, settings, folder, noise, public=None):
        self.name, self.settings, self.path, self.noise = name, settings, folder / "people.store", noise
        self.worker = None
        if name == "engine":
            self.model = Engine(settings, self.noise)
        else:
            self._serve(Store.create(self.path, settings, noise=self.noise, synchronous="OFF"))
        if public is not None:
            self._in_turn(lambda: self.model.declare_public(public))

    def _serve(self, store):
        self.model = store
        self.worker = Worker(store, Metrics()) if self.name == "server" else None

    @property
    def stored(self):
        return isinstance(self.model, Store)

    @property
    def engine(self):
        return self.model.engine if self.stored else self.model

    # Records

    def add(self, rows):
        return self._in_turn(lambda: self.model.add(_features(rows), _labels(rows), _owners(rows)))

    def upsert(self, rows, ids):
        """`ids` are the records that the rows replace, None for rows that are new."""
        if self.stored:
            items = [Item(label, owner, i) for (owner, _, label), i in zip(rows, ids, strict=True)]
            return self._in_turn(lambda: self.model.upsert(_features(rows), items)).numbers
        made = self.add(rows)
        self.model.forget_records([i for i in ids if i is not None])
        return made

    def replace_all(self, rows):
        prepared = self.engine.settings.prepare(_features(rows), _labels(rows))
        return self._in_turn(lambda: self.model.replace_all(*prepared, _owners(rows)))

    def fit(self, rows, settings):
        """What `fit` of an estimator does: in memory it starts anew, under other settings if need be."""
        if not self.stored:
            self.settings = settings
            self.model = self.model.restarted(settings, self.noise)
        return self.replace_all(rows)

    def forget(self, owners, ids=()):
        """What a person is told who asked for it."""
        if not self.stored:
            return self.model.forget_owners(owners) + self.model.forget_records(ids)
        receipt = self._in_turn(lambda: self.model.forget(owners, records=ids))
        return {name: receipt[name] for name in _RECEIPT if name in receipt}

    def purge(self):
        self._in_turn(self.model.purge)

    # Asking

    def ask(self, requests):
        """(queries, analyst, request id, limit) each; for every request its labels, or why it was refused."""
        if self.worker is not None:
            answers = asyncio.run(self._together(requests))
            finish_training(self.worker)
            return answers
        return [self._alone(*request) for request in requests]

    async def _together(self, requests):
        futures = [self.worker.predict(Q, analyst, name, most) for Q, analyst, name, most in requests]
        found = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), 60)
        return [_outcome(getattr(one, "labels", one)) for one in found]

    def _alone(self, Q, analyst, name, _):
        options = {"request_id": name} if self.stored else {}
        try:
            labels = self.model.predict(Q, analyst, **options)
        except REFUSALS as error:
            return _outcome(error)
        return _outcome(np.searchsorted(self.settings.class_array, labels))

    # What there is to see

    def statement(self, owner):
        """What somebody is told about themselves."""
        return self._in_turn(lambda: statement(self.engine, owner))

    def balances(self, owners):
        """Of each what they have spent by scope, in how many releases they took part, and how many records they have."""
        ledger, shard, names = self.engine.ledger, self.engine.shard, list(owners)
        spent = {scope: ledger.spent(names, scope).tolist() for scope in ledger.scopes} if names else {}
        queries, records = ledger.queries(names).tolist(), [len(shard.slots_of_owners([name])) for name in names]
        return {
            name: ({scope: units[i] for scope, units in spent.items() if units[i]}, queries[i], records[i])
            for i, name in enumerate(names)
        }

    def view(self, analyst):
        """What an analyst sees besides labels: the threshold, a forecast, counters, and what was released to them."""
        predictor = self.engine.predictor
        adviser, model = predictor.adviser(analyst), predictor.model
        told = [*getattr(adviser, "told", ()), *getattr(model, "told", ())]
        seen = {"released": list(map(_shown, told)), "tau": (adviser or predictor).tau}
        seen["due"] = model and (model.due(), model.rounds, model.step, model.follow, model.since)
        if self.stored:
            return seen | self._in_turn(lambda: self._stored_view(analyst))
        return seen | {"forecast": adviser and forecast(advised_stream(adviser, np.zeros(0)))}

    def _stored_view(self, analyst):
        if self.model._state.journal.owed:  # a server may still owe the file a release that nobody waits for
            self.model.flush()
        with self.model.reading() as db:
            answers = [
                (None if query is None else query.values.tobytes(), label, _shown(release))
                for scope, query, label, release in read_answers(db, self.settings.n_features)
                if scope in {analyst, SHARED}
            ]
        given = None if self.worker is None else self.worker._given.get(analyst, 0)
        counted = answers_by_analyst(self.model).get(analyst, 0)
        return {"forecast": forecast(stream(self.model, analyst)), "answers": answers, "given": (given, counted)}

    # Time

    def train(self, most=99):
        """The operator has the shared model trained, or waits for so many releases of a round."""
        if self.engine.settings.advised:
            told = self.engine.predictor.model.__dict__.setdefault("told", [])
            enough = len(told) + most
            self._in_turn(lambda: any(len(told) >= enough for _ in self.model.train()))

    def half(self):
        """The process ends in the middle of a round."""
        self.train(4)
        self.restart()

    def restart(self):
        """Close the store and read it back from its file. An engine has no file, and goes on."""
        if self.stored:
            self.close()
            self._serve(Store(self.path, noise=self.noise, synchronous="OFF"))

    def fail(self):
        """As after an error of the disk: what is in memory is thrown away, and read anew without a last fold."""
        if self.stored:
            self.model.flush()
            self.model._state.journal.failure = OSError("a failure that is made up")

    def problems(self):
        """What `indknn verify` finds."""
        return list(problems(self.model)) if self.stored else []

    def close(self):
        if self.worker is not None:
            self.worker.close()
        if self.stored:
            self.model.close()

    def _in_turn(self, work):
        """A server has other work wait for its turn among the predictions."""
        return work() if self.worker is None else asyncio.run(self.worker.run(work))


def _shown(release):
    """A release as bytes."""
    return b"" if release is None else encode(release)


def _features(rows):
    return np.array([x for _, x, _ in rows])


def _labels(rows):
    return np.array([label for _, _, label in rows])


def _owners(rows):
    return [owner for owner, _, _ in rows]


def _outcome(found):
    if isinstance(found, REFUSALS):
        return type(found).__name__, str(found)
    if isinstance(found, BaseException):
        raise found
    return np.asarray(found).tolist()
