"""Analysts who are given a smaller ε than the store's, for everything that they are ever told.

The smaller ε is a public fact about the analyst, and a promise to everybody whose records answer them. So it is kept in
the settings of the store file, which the self-checks cover, and not with the keys. If the key file is lost, moved or
restored, nothing changes.

It must be given, or lowered, before the analyst's first answer. Later, a smaller ε might not be true of what the
analyst was already told. Whether it is true depends on what people have spent, which is private (rule 8). So even that
must not decide. A larger ε would hurt nobody else, but would break what was printed.

If the ε is not above what the shared model may use, the analyst sees nothing of the shared model. Then only votes
answer them, within their own ε. What they are told depends on their own ledger and on nothing that is shared, and the
other way round. A schema that people paid for is shared too, and every answer depends on it. So a store can have such a
schema or such analysts, but not both.
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
from indknn.store.connection import Connection
from indknn.store.home import home_of
from indknn.store.keyfile import check_name
from indknn.store.opening import State


def settings_with_limit(state: State, analyst: str, epsilon: float) -> Settings | None:
    """The settings in which this analyst has this ε. None if that is so already. The journal must be written before."""
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
            f"analyst {analyst!r} was answered already, within epsilon = {settings.seen_by(analyst).epsilon:g}, so "
            f"epsilon cannot become {epsilon:g}; use a new name"
        )
    if settings.advised and not now.seen_by(analyst).advised and has_paid_schema(state.db):
        least = epsilon_of(settings.shared_budget, settings.delta, settings.accountant)
        raise InvalidInputError(
            f"epsilon of analyst {analyst!r} must be above {least:.4g}, got {epsilon:g}: that much may be spent on "
            "what every analyst sees, and the schema of this store is part of it"
        )
    if ledger.house:
        raise InvalidInputError(
            "no analyst of this store can be given less: all of them have one ledger, because queries without a name "
            "trained its model"
        )
    return now


def has_paid_schema(db: Connection) -> bool:
    """Whether people ever paid for counts of their tables. This can only happen before the first records."""
    early = takewhile(lambda entry: entry.kind != "add", chain.entries(db))
    return any(entry.kind == "answers" and "schema" in entry.facts for entry in early)


def read_limits(place: Place) -> dict[str, float] | None:
    """The ε of analysts who were given less, without reading the rest of a store.

    None while another process has it open.
    """
    beside = not isinstance(place, Path)  # a database can be read beside its server
    try:
        with home_of(place).opened(read_only=beside) as db:
            limits: dict[str, float] = json.loads(database.get_meta(db, "settings"))["analysts"]
            return limits
    except StoreLockedError:
        return None
