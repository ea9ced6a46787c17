"""The analysts that a store knows: who may ask, and who was given a smaller ε.

Every analyst has a budget of their own. So a new name is a new budget, and a misspelt one would be a second budget for
the same analyst. That is why analysts are declared before they ask. It is a public event, like the settings of the
store. Nobody is ever taken off the list. A key that may ask declares its name, and so did everybody who was answered
before. The analyst without a name needs no declaration.

An analyst may be given a smaller ε than the store's, for everything that they are ever told. This is a public fact
about the analyst, and a promise to everybody whose records answer them. So it is kept in the settings of the store,
which the self-checks cover, and not with the keys. It must be given, or lowered, before the analyst's first answer.
Later, a smaller ε might not be true of what the analyst was already told. Whether it is true depends on what people
have spent, which is private (rule 8). So even that must not decide. A larger ε would hurt nobody else, but would break
what was printed.

If the ε is not above what the shared model may use, the analyst sees nothing of the shared model. Then only votes
answer them, within their own ε. What they are told depends on their own ledger and on nothing that is shared, and the
other way round. A schema that people paid for is shared too, and every answer depends on it. So a store can have such a
schema or such analysts, but not both. A published model is seen by everybody. So it is the same for that.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from indknn.answering.requests import checked_analyst
from indknn.errors import InvalidInputError, StoreLockedError, meant
from indknn.ledger import Scope
from indknn.ledger.figures import epsilon_of
from indknn.place import Place
from indknn.settings import Settings
from indknn.store import chain, database
from indknn.store.chain import StoreConnection
from indknn.store.database import read_analysts
from indknn.store.home import State, home_of

_LONGEST_NAME = 128


def check_name(name: str) -> None:
    """Refuse a text that cannot be the name of a key's holder."""
    if not (isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME and name.isprintable() and name.strip() == name):
        wanted = f"name must be 1 to {_LONGEST_NAME} printable characters, without spaces around them"
        raise InvalidInputError(f"{wanted}, got {name!r}")


def declare(db: StoreConnection, analyst: str) -> set[str]:
    """Let the store know this analyst, who may ask from now on. Inside a transaction. Returns all whom it knows so.

    The audit trail has no names, so it says how many there are.
    """
    names = read_analysts(db)
    if analyst not in names:
        names.add(analyst)
        database.set_meta(db, "analysts", json.dumps(sorted(names)))
        chain.append(db, "analyst", analysts=len(names))
    return names


def known_analysts(state: State) -> list[str]:
    """The names that were declared, given a smaller ε, or answered before."""
    return sorted(state.engine.predictor.told | state.analysts | state.engine.settings.analysts.keys())


def refuse_unknown(state: State, analyst: Scope) -> None:
    """Refuse an analyst who was not declared."""
    if checked_analyst(analyst) is None or analyst in state.analysts:
        return
    known = known_analysts(state)
    if analyst not in known:
        hint, new = meant(str(analyst), known), f"indknn analysts add {state.home.place} {shlex.quote(str(analyst))}"
        raise InvalidInputError(f"there is no analyst {analyst!r}{hint or ';'} {new} makes a new budget")


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
    if settings.advised and not now.seen_by(analyst).advised:
        least = epsilon_of(settings.shared_budget, settings.delta, settings.accountant)
        must = f"epsilon of analyst {analyst!r} must be above {least:.4g}, got {epsilon:g}: that much may be spent on "
        if has_paid_schema(state.db):
            raise InvalidInputError(f"{must}what every analyst sees, and the schema of this store is part of it")
        if is_published(state.db):
            raise InvalidInputError(f"{must}the shared model, which was published, so this analyst may see it")
    if ledger.joint:
        raise InvalidInputError(
            "no analyst of this store can be given less: all of them have one ledger, because queries without a name "
            "trained its model"
        )
    return now


def has_paid_schema(db: StoreConnection) -> bool:
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


def is_published(db: StoreConnection) -> bool:
    """Whether the shared model of this open store was ever given out to be published."""
    return database.get_meta(db, "published") is not None


def mark_published(db: StoreConnection) -> None:
    """Let the store remember that its model was published. Inside a transaction."""
    database.set_meta(db, "published", 1)
    chain.append(db, "publish")
