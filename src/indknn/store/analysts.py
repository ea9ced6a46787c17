"""Analysts who are given less than the store's ε, for all that they are ever told.

It is a public fact about the analyst, and a promise to everybody whose records answer them. So it is kept in the
settings of the store file, which the books cover, and not with the keys: a file of keys that was lost, moved or
restored changes nothing.

It is given, or lowered, before the analyst's first answer. Later on less would not be true of what was told already.
Whether it happens to be true depends on what people have spent, which is private (rule 8), so not even that may decide.
More would hurt nobody else, but would break what was printed.
"""

from __future__ import annotations

from dataclasses import replace

from indknn.errors import InvalidInputError
from indknn.settings import Settings
from indknn.store import database
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
    if ledger.house:
        raise InvalidInputError(
            "all analysts of this store have one ledger, because queries without a name trained its model: none of "
            "them can be given less"
        )
    return now
