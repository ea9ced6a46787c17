"""Turns all names into text, once, in a file from the time when an owner could also be a number or bytes (rule 13).

Then 7, "7" and b"7" were three people with three budgets. They are one person, so their records are joined, and so is
what they had spent. Nothing is refunded, and they may have spent more than one budget by now. Forgotten people are
known only by a hash. So from now on a name is also looked up under the hashes of its older forms.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from indknn.ledger import MemoryLedger, Scope
from indknn.ledger.memory import Tombstone
from indknn.store import chain, database
from indknn.store.codec import BLOCK, decode_name, encode_name, record_type
from indknn.store.home import Connection
from indknn.types import OwnerId


def names_to_text(db: Connection, ledger: MemoryLedger) -> None:
    """Rename and join everybody, in one transaction. The ledger is empty, and has the budgets and the key."""
    with db:
        slots, doubles, renamed = _rename(db)
        graves = database.read_tombstones(db)
        ledger.restore((), {}, np.zeros(0, dtype=np.int64), graves, 0, old_names=True)
        back = {name: found for name in slots if (found := ledger.graves(name))} if graves else {}
        facts: dict[str, Any] = {"renamed": renamed, "joined": len(doubles) + len(back)}
        if doubles or back:
            facts["extra"] = str(_join(db, ledger, slots, doubles, back))
        database.set_meta(db, "names", "text")
        if len(graves) > sum(map(len, back.values())):
            database.set_meta(db, "old_names", 1)
        chain.append(db, "names", **facts)


def _rename(db: Connection) -> tuple[dict[OwnerId, int], dict[int, OwnerId], int]:
    """The slot of each name, other slots of the same name (which are blanked), and how many names were changed."""
    slots: dict[OwnerId, int] = {}
    doubles: dict[int, OwnerId] = {}
    changed, blank = [], []
    for number, slot, body in db.execute("SELECT number, slot, name FROM owners ORDER BY number"):
        if not body.strip(b"\0"):
            continue
        name = decode_name(body, slot)
        text = encode_name(name, slot)
        if slots.setdefault(name, slot) != slot:
            doubles[slot] = name
            blank.append((number,))
        elif text != body:
            changed.append((number, slot, text, len(text) == len(body)))
    db.executemany("UPDATE owners SET name = ? WHERE number = ?", ((text, n) for n, _, text, fits in changed if fits))
    longer = [(n, slot, text) for n, slot, text, fits in changed if not fits]  # rows never change their length
    db.executemany(_BLANK, blank + [(n,) for n, _, _ in longer])
    db.executemany("INSERT INTO owners (slot, name) VALUES (?, ?)", (row[1:] for row in longer))
    return slots, doubles, len(changed) + len(doubles)


_BLANK = "UPDATE owners SET name = zeroblob(length(name)) WHERE number = ?"


def _join(
    db: Connection,
    ledger: MemoryLedger,
    slots: dict[OwnerId, int],
    doubles: dict[int, OwnerId],
    back: dict[OwnerId, list[bytes]],
) -> int:
    """Join records and accounts. Returns by how much all accounts together have grown."""
    accounts = database.read_accounts(db)
    touched, extra = set(accounts.touched), 0

    def at(slot: int) -> Tombstone:
        spent = {scope: int(units[slot]) for scope, units in accounts.spent.items()}
        return Tombstone(spent, int(accounts.queries[slot]))

    def put(slot: int, account: Tombstone) -> None:
        accounts.queries[slot] = account.queries
        for scope, units in account.spent.items():
            accounts.spent[scope][slot] = units
            touched.add((scope, slot // BLOCK))

    others = [(name, at(slot)) for slot, name in doubles.items()]
    others += [(name, ledger.tombstones[digest]) for name, found in back.items() for digest in found]
    for slot in doubles:
        put(slot, Tombstone(dict.fromkeys(accounts.spent, 0), 0))
    for name, other in others:
        one = at(slots[name])
        joint = one.joined(other)
        put(slots[name], joint)
        extra += sum(joint.spent.values()) - sum(one.spent.values()) - sum(other.spent.values())
    for name in {name for name, _ in others}:
        note_if_above(db, ledger, name, at(slots[name]).spent)
    balances = [
        database.Balance(
            scope,
            block,
            accounts.spent[scope][block * BLOCK : (block + 1) * BLOCK].astype("<i8").tobytes(),
            accounts.queries[block * BLOCK : (block + 1) * BLOCK].astype("<i4").tobytes(),
        )
        for scope, block in sorted(touched, key=str)
    ]
    database.write_balances(db, balances, int(db.execute("SELECT coalesce(max(seq), 0) FROM answers").get))
    digests = ((digest,) for found in back.values() for digest in found)
    db.executemany("DELETE FROM tombstones WHERE digest = ?", digests)
    _move_records(db, {slot: slots[name] for slot, name in doubles.items()})
    return extra


def note_if_above(db: Connection, ledger: MemoryLedger, name: OwnerId, spent: dict[Scope, int]) -> None:
    """Remember what a joined person had spent, if it is more than anybody else may have."""
    above = max(spent.values(), default=0) > ledger.budget
    if above or (ledger.global_budget is not None and sum(spent.values()) > ledger.global_budget):
        database.write_joined(db, ledger.digest(name), spent)


def _move_records(db: Connection, heirs: dict[int, int]) -> None:
    """Move the records of some owner slots to others."""
    head = record_type(0)
    rows = db.execute("SELECT slot, substr(body, 1, ?) FROM records", (head.itemsize,)) if heirs else ()
    owners = {slot: int(np.frombuffer(body, dtype=head)["owner"][0]) for slot, body in rows}
    for slot, owner in owners.items():
        if owner in heirs:
            body = bytearray(db.execute("SELECT body FROM records WHERE slot = ?", (slot,)).get)
            np.frombuffer(body, dtype=head, count=1)["owner"] = heirs[owner]
            db.execute("UPDATE records SET body = ? WHERE slot = ?", (bytes(body), slot))
