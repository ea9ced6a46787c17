"""Noisy counts of a table, charged to its people before they are in the store.

A store holds vectors, and vectors can only be made with a schema. So the rows come from a file, and its people are not
in the store yet. One transaction enrols them, charges them in the shared ledger, and forgets them again. Each charge is
recorded under the keyed hash of the name, and a person who is added later starts with it (rule 4). No name and no row
is written. The noisy counts are in the same transaction, so a crash loses both or neither, and nothing leaves before it
is on disk (rule 2). The counts are kept, so asking again costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from indknn.core import accounting, statistics
from indknn.core.inputs import as_epsilons
from indknn.core.releases import TableCounts, decode
from indknn.errors import InvalidInputError
from indknn.ledger import SHARED
from indknn.ledger.promises import Wanted, wanted
from indknn.settings import Settings
from indknn.store import chain, database
from indknn.store.change import Change
from indknn.store.intake import people_of
from indknn.store.store import Store
from indknn.tables import counts as grid
from indknn.tables.infer import BLANKS
from indknn.types import IntArray, OwnerId

SHARE = 0.05
"""The price, as a share of the part of each person's budget that is for what all analysts see."""


def price_of(settings: Settings) -> float:
    """The most that the counts cost each person."""
    return SHARE * settings.shared_budget


def earlier_counts(store: Store) -> TableCounts | None:
    """Counts that were paid for before, if there are any."""
    query = "SELECT release FROM answers WHERE label = -1 AND substr(release, 1, 1) = ? ORDER BY seq DESC LIMIT 1"
    with store.reading() as db:
        found = db.execute(query, (TableCounts.kind,)).get
    release = None if found is None else decode(found)
    return release if isinstance(release, TableCounts) else None


def refuse_if_late(store: Store) -> None:
    """Refuse counts unless the store is waiting for its schema and has a shared ledger to pay from."""
    if not store.settings.advised:
        raise InvalidInputError(f"{store.path} has no shared part of the budget (mode='votes') to pay for counts from")
    if not store.draft or store.schema is not None:
        raise InvalidInputError(
            f"{store.path} has a schema or records already; counts are for a store that has neither"
        )


def refuse_if_apart(settings: Settings) -> None:
    """Refuse counts if some analysts were promised that they see nothing shared. All analysts see the counts."""
    if any(not settings.seen_by(name).advised for name in settings.analysts):
        raise InvalidInputError(
            "an analyst of this store must see nothing that is shared, because their epsilon is too small for it; all "
            "analysts would see these counts"
        )


def pay_for_counts(store: Store, columns: dict[str, list[Any]], owners: list[Any], epsilons: Any = None) -> TableCounts:
    """Noisy counts of these columns. Everybody who has a row in them pays `price_of`, or their share of it."""
    refuse_if_late(store)
    refuse_if_apart(store.settings)
    if not columns or not owners:
        raise InvalidInputError("a table must have at least one row, and a column besides its roles")
    rows, cells = grid.cells_of(columns, BLANKS)
    with store.changing() as change:
        names = people_of(owners, len(owners), change.state.engine.ledger, vacant=False)
        assert names is not None
        engine = change.state.engine
        asked = wanted(engine.settings, engine.ledger, names, as_epsilons(epsilons, len(owners)))
        return _released(change, tuple(columns), names, rows, cells, asked)


def _released(
    change: Change,
    columns: tuple[str, ...],
    owners: Sequence[OwnerId],
    rows: IntArray,
    cells: IntArray,
    asked: Wanted | None,
) -> TableCounts:
    db, journal, ledger = change.state.db, change.state.journal, change.state.engine.ledger
    price = price_of(change.state.engine.settings)
    # A row adds one to some cells of every column; people with several rows are scaled down to the same price.
    scale = statistics.tally_scale(price / (grid.CELLS_OF_A_VALUE * len(columns)))
    before, used = set(ledger.tombstones), ledger.used
    slots = ledger.enrol(owners)[rows]
    ledger.take_arrivals()  # nobody stays, so no name is written
    if asked is not None:
        ledger.lower(asked)
    limits = np.minimum(ledger.remaining(slots, SHARED), ledger.scaled(slots, accounting.to_units(price)))
    tally = statistics.tally(cells, slots, limits, grid.CELLS * len(columns), scale)
    ledger.charge(tally.owners, tally.charges, SHARED)
    (ledger.log or {}).pop(SHARED, None)  # they are written as tombstones, not as debits
    release = TableCounts(scale, columns, statistics.noisy_tally(tally.sums, scale, change.state.engine.noise))
    ledger.retire(tally.owners)
    ledger.used = used  # nobody was told anything about a record
    db.delete("tombstones", ((digest,) for digest in before - set(ledger.tombstones)))
    database.write_tombstones(db, ledger.tombstones)  # nobody was here before, so all are of people who paid
    database.set_meta(db, "next_number", str(ledger.next_number))
    seq, charged = journal.number(), sum(tally.charges.tolist())
    database.write_sum(db, seq, release, charged)
    journal.fold()
    facts = {"first": seq, "last": seq, "count": 1, "sums": 1, "charged": str(charged)}
    chain.append(db, "answers", **facts, schema={"columns": len(columns), "price": price})
    return release
