"""The roads by which people are served, with one face: an engine, a durable store, the server's worker, a cluster.

Calls whose form may change are wrapped here once: names of owners, ids of records, purging, statements.
"""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from threading import Event

import numpy as np

from helpers.asking import declared
from helpers.ledgers import took_part
from indknn.cluster import Cluster
from indknn.cluster.links import Inline
from indknn.core.releases import encode
from indknn.engine import Engine
from indknn.errors import InvalidInputError, PrivacyError
from indknn.ledger import SHARED
from indknn.ledger.figures import statement
from indknn.models.forecast import advised_stream, forecast
from indknn.server.problems import Problem
from indknn.server.telemetry import Metrics
from indknn.server.worker import Worker
from indknn.store import Store
from indknn.store.database import read_answers
from indknn.store.reports import answers_by_analyst, stream
from indknn.store.table_counts import pay_for_counts
from indknn.store.verify import problems
from indknn.types import Given
from indknn_lab.audits.served import finish_training

ROADS = ("engine", "store", "server", "cluster")
REFUSALS = (InvalidInputError, Problem)
_RECEIPT = ("records", "owners_forgotten", "kept", "owners", "on_the_books")  # what else is in it depends on time
_KEPT = ("mode", "model_share", "reuse", "epsilon", "accountant", "global_epsilon", "analysts")


class Road:
    """One model. `rows` are (owner, features, label, record id, hour). `table` is what people pay for before, as (owner, value)."""

    def __init__(self, name, settings, folder, noise, public=None, table=()):
        self.name, self.settings, self.path, self.noise = name, settings, folder / "people.store", noise
        self.worker, self._held, self._loop = None, False, asyncio.Runner() if name == "server" else None
        shards = Cluster(Inline, 2).new_shard if name == "cluster" else None
        self._options = {"noise": noise, "synchronous": "OFF", "make_shard": shards}
        if name == "engine":
            self.model = Engine(settings, self.noise)
        else:
            made = Store.create(self.path, replace(settings, analysts={}), draft=bool(table), **self._options)
            if table:
                pay_for_counts(made, {"value": [value for _, value in table]}, [owner for owner, _ in table])
            for analyst, epsilon in settings.analysts.items():
                made.limit_analyst(analyst, epsilon)
            self._serve(declared(made, "ann", "bob", "eve"))
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
        given = _features(rows), _labels(rows), _owners(rows), _keys(rows)
        return self._in_turn(lambda: self.model.add(*given, expires=_dates(rows)))

    def upsert(self, rows, ids):
        """`ids` are the records that the rows replace, None for rows that are new."""
        if self.stored:
            owners, labels = [owner for owner, *_ in rows], [label for _, _, label, *_ in rows]
            given = Given(_features(rows), labels, owners, expires=_dates(rows))
            return self._in_turn(lambda: self.model.upsert(given, ids)).numbers
        made = self.add(rows)
        self.model.forget_records([i for i in ids if i is not None])
        return made

    def replace_all(self, rows):
        prepared = self.engine.settings.prepare(_features(rows), _labels(rows))
        return self._in_turn(lambda: self.model.replace_all(Given(*prepared, _owners(rows), expires=_dates(rows))))

    def fit(self, rows, settings):
        """What `fit` of an estimator does: in memory it starts anew, under other settings if need be.

        Budgets are never divided in another way after something was spent, nor may analysts begin or cease to see what is
        shared. Whoever tries it is refused, and tries again.
        """
        if not self.stored:
            try:
                self.model = self.model.restarted(settings, self.noise)
            except PrivacyError:
                kept = {name: getattr(self.settings, name) for name in _KEPT}
                settings = replace(settings, **kept)
                self.model = self.model.restarted(settings, self.noise)
            self.settings = settings
        return self.replace_all(rows)

    def forget(self, owners, ids=()):
        """What a person is told who asked for it."""
        if not self.stored:
            return self.model.forget_owners(owners) + self.model.forget_records(ids)
        receipt = self._in_turn(lambda: self.model.forget(owners, records=ids))
        return {name: receipt[name] for name in _RECEIPT if name in receipt}

    def erase_some(self):
        """As a server does between answers. The rest of what has expired stays for later."""
        if self.stored:
            self._in_turn(lambda: self.model.expire_piece(3))

    def hold(self, owner, begins):
        """A hold begins or ends. An engine in memory has none."""
        if self.stored:
            self._in_turn(lambda: self.model.hold(owner) if begins else self.model.release_hold(owner))

    def purge(self):
        self._in_turn(self.model.purge)

    # Asking

    def ask(self, requests):
        """(queries, analyst, request id, limit) each; for every request its labels, or why it was refused."""
        if self.worker is not None:
            return self._loop.run(self._together(requests))
        return [self._alone(*request) for request in requests]

    async def _together(self, requests):
        """All wait before the first is answered, so that they share a batch in both worlds, however busy the machine is."""
        gate = Event()
        held = asyncio.ensure_future(self.worker.run(gate.wait))
        await asyncio.sleep(0)  # it is queued now
        futures = [self.worker.predict(Q, analyst, name, most) for Q, analyst, name, most in requests]
        gate.set()
        _, *found = await asyncio.wait_for(asyncio.gather(held, *futures, return_exceptions=True), 600)
        return [_outcome(getattr(one, "labels", one)) for one in found]

    def _alone(self, Q, analyst, name, _):
        options = {"request_id": name} if self.stored else {}
        try:
            labels = self.model.predict(Q, analyst, **options)
        except REFUSALS as error:
            return _outcome(error)
        return _outcome(self.settings.target_.encode(labels)[0])

    # What there is to see

    def statement(self, owner):
        """What somebody is told about themselves."""
        return self._in_turn(lambda: statement(self.engine, owner))

    def balances(self, owners):
        """Of each what they have spent by scope, in how many releases they took part, and how many records they have."""
        ledger, shard, names = self.engine.ledger, self.engine.shard, list(owners)
        spent = {scope: ledger.spent(names, scope).tolist() for scope in ledger.scopes} if names else {}
        self.engine.ledger.tick()
        here = np.bincount(shard.owners_of(shard.slots()[shard.unexpired(shard.slots())]), minlength=1).tolist()
        queries, slots = took_part(ledger, names), ledger.find(names).tolist()
        records = [here[slot] if 0 <= slot < len(here) else 0 for slot in slots]
        return {
            name: ({scope: units[i] for scope, units in spent.items() if units[i]}, queries[i], records[i])
            for i, name in enumerate(names)
        }

    def views(self, analysts):
        """What each analyst sees besides labels: the threshold, a forecast, counters, and what was released to them."""
        if self.stored and self.model.draft:
            return {}
        if not self.stored:
            return {analyst: self._view(analyst) for analyst in analysts}
        return self._in_turn(lambda: self._stored_views(analysts))

    def _view(self, analyst):
        predictor = self.engine.predictor
        adviser, model = predictor.adviser(analyst), None if self.apart(analyst) else predictor.model
        told = [*getattr(adviser, "told", ()), *getattr(model, "told", ())]
        seen = {"released": list(map(_shown, told)), "tau": (adviser or predictor).tau}
        seen["due"] = model and (model.due(), model.rounds, model.step, model.follow, model.since)
        return seen | ({} if self.stored else {"forecast": adviser and forecast(advised_stream(adviser, np.zeros(0)))})

    def _stored_views(self, analysts):
        if self.model._state.journal.owed:  # a server may still owe the file a release that nobody waits for
            self.model.flush()
        with self.model.reading() as db:
            answers = [
                (scope, (None if query is None else query.values.tobytes(), label, _shown(release)))
                for scope, query, label, release in read_answers(db, self.settings.n_features)
            ]
        counted, views = answers_by_analyst(self.model), {}
        for analyst in analysts:
            seen = {analyst} if self.apart(analyst) else {analyst, SHARED}
            views[analyst] = self._view(analyst) | {
                "forecast": forecast(stream(self.model, analyst)),
                "answers": [answer for scope, answer in answers if scope in seen],
                "given": (None if self.worker is None else self.worker._given.get(analyst, 0), counted.get(analyst, 0)),
            }
        return views

    def apart(self, analyst):
        """Whether this analyst sees nothing that is shared."""
        return self.engine.ledger.apart(analyst)

    # Time

    def pieces(self):
        """A round, or the rest of one, release by release. Nobody else trains meanwhile."""
        if not self.engine.settings.advised:
            return
        pieces, told = self.model.train(), self.engine.predictor.model.__dict__.setdefault("told", [])
        self._held = True
        try:
            while self._in_turn(lambda: _one_more(pieces, told)):
                yield
        finally:
            self._held = False

    def train(self, most=99):
        """The operator has the shared model trained, or waits for so many releases of a round."""
        if self.engine.settings.advised:
            for _ in zip(range(most), self.pieces(), strict=False):
                pass

    def idle(self):
        """Nobody asks for a while: a server trains by itself, whatever came before. Elsewhere nothing happens."""
        if self.worker is not None and not self._held:
            finish_training(self.worker)

    def half(self):
        """The process ends in the middle of a round."""
        self.train(4)
        self.restart()

    def restart(self):
        """Close the store and read it back from its file. An engine has no file, and goes on."""
        if self.stored:
            self._stop()
            self._serve(Store(self.path, **self._options))

    def fail(self):
        """As after an error of the disk: what is in memory is thrown away, and read anew without a last fold."""
        if self.stored:
            self.model.flush()
            self.model._state.journal.failure = OSError("a failure that is made up")

    def problems(self):
        """What `indknn verify` finds."""
        return list(problems(self.model)) if self.stored else []

    def close(self):
        """Everything is on disk, and nobody works on it any more."""
        self._stop()
        if self._loop is not None:
            self._loop.close()

    def _stop(self):
        if self.worker is not None:
            self.worker.close()
        if self.stored:
            self.model.close()

    def _in_turn(self, work):
        """A server has other work wait for its turn among the predictions."""
        return work() if self.worker is None else self._loop.run(self._waited(work))

    async def _waited(self, work):
        return await self.worker.run(work)


def _one_more(pieces, told):
    """Go on until something is released. Returns whether anything was."""
    before = len(told)
    return any(len(told) > before for _ in pieces)


def _shown(release):
    """A release as bytes."""
    return b"" if release is None else encode(release)


def _features(rows):
    return np.array([x for _, x, *_ in rows])


def _labels(rows):
    return np.array([label for _, _, label, *_ in rows])


def _owners(rows):
    return [owner for owner, *_ in rows]


def _keys(rows):
    keys = [key for _, _, _, key, _ in rows]
    return keys if any(keys) else None


def _dates(rows):
    return [None if hour is None else datetime.fromtimestamp(3600 * hour, UTC).isoformat() for *_, hour in rows]


def _outcome(found):
    if isinstance(found, REFUSALS):
        return type(found).__name__, str(found)
    if isinstance(found, BaseException):
        raise found
    return np.asarray(found).tolist()
