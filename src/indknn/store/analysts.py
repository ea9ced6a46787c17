"""Analysts who are given less than the store's ε, for all that they are ever told.

It is a public fact about the analyst, and a promise to everybody whose records answer them. So it is kept in the
settings of the store file, which the books cover, and not with the keys: a file of keys that was lost, moved or
restored changes nothing.

It is given, or lowered, before the analyst's first answer. Later on less would not be true of what was told already.
Whether it happens to be true depends on what people have spent, which is private (rule 8), so not even that may decide.
More would hurt nobody else, but would break what was printed.

Who is given no more than the shared model may take sees nothing of it: votes alone answer them, within their own ε.
What they are told then depends on their own ledger, and on nothing that is shared; nor does the other way round.
A schema that people paid for is shared as well, and every answer follows from it. So a store has one or the other.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from indknn.errors import InvalidInputError, StoreLockedError
from indknn.ledger.figures import epsilon_of
from indknn.place import Place
from indknn.settings import Settings
from indknn.store import chain, database
from indknn.store.home import Connection, home_of
from indknn.store.keyfile import check_name
from indknn.store.opening import State


def settings_with_less(state: State, analyst: str, epsilon: float) -> Settings | None:
    """The settings in which this analyst has this ε; None if that is so already. The journal is written by now."""
    check_name(analyst)
    settings, ledger = state.engine.settings, state.engine.ledger
    now, was = replace(settings, analysts={**settings.analysts, analyst: epsilon}), settings.analysts.get(analyst)
    if was == epsilon:
        return None
    if was is not None and epsilon > was:
        raise InvalidInputError(
            f"epsilon of analyst {analyst!r} may be lowered, never raised: {was:g} was given, got {epsilon:g}"
        )
    if analyst in database.read_scopes(state.db).values():
        raise InvalidInputError(
            f"analyst {analyst!r} was answered already, within epsilon = {settings.seen_by(analyst).epsilon:g}: that "
            f"cannot become {epsilon:g}; use a name that nobody has asked under"
        )
    if settings.advised and not now.seen_by(analyst).advised and has_paid_schema(state.db):
        least = epsilon_of(settings.shared_budget, settings.delta, settings.accountant)
        raise InvalidInputError(
            f"epsilon of analyst {analyst!r} must be above {least:.4g}, which the shared ledger may take, got "
            f"{epsilon:g}: it paid for the schema of this store, which every analyst sees"
        )
    if ledger.house:
        raise InvalidInputError(
            "all analysts of this store have one ledger, because queries without a name trained its model: none of "
            "them can be given less"
        )
    return now


def has_paid_schema(db: Connection) -> bool:
    """Whether people ever paid for counts of their tables. That is done before the first records, if at all."""
    early = takewhile(lambda entry: entry.kind != "add", chain.entries(db))
    return any(entry.kind == "answers" and "schema" in entry.facts for entry in early)


def read_given_less(place: Place) -> dict[str, float] | None:
    """The ε of analysts who were given less, without reading the rest of a store; None while somebody has it open."""
    home, read_only = home_of(place), not isinstance(place, Path)  # a database can be read beside its server
    try:
        home.hold(read_only=read_only)
    except StoreLockedError:
        return None
    try:
        db = home.connect(read_only=read_only)
        try:
            given: dict[str, float] = json.loads(database.get_meta(db, "settings")).get("analysts", {})
            return given
        finally:
            home.close(db)
    finally:
        home.release()
