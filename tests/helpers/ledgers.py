"""What tests ask a ledger, and nobody else."""


def took_part(ledger, names):
    """In how many queries each has taken part, here or forgotten."""
    slots = ledger.slots_of(names).tolist()
    here = ledger.participation.tolist()
    return [
        here[slot] if slot >= 0 else ledger.tombstone(name).queries for slot, name in zip(slots, names, strict=True)
    ]
