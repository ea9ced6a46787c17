"""The store behind an estimator. It is made if there is none, or opened if its settings are the same."""

from __future__ import annotations

from dataclasses import fields, replace

from indknn.engine import MakeShard
from indknn.errors import InvalidInputError
from indknn.place import Place
from indknn.settings import Settings
from indknn.store import home
from indknn.store.store import Store


def made_or_opened(place: Place, settings: Settings, make_shard: MakeShard | None) -> tuple[Store, bool]:
    """The store in this place, and whether it was made now."""
    if not home.home_of(place).exists():
        return Store.create(place, settings, make_shard=make_shard), True
    store = Store(place, make_shard=make_shard)
    try:
        refuse_other(store, settings)
    except BaseException:
        store.close()
        raise
    return store, False


def refuse_other(store: Store, settings: Settings) -> None:
    """Refuse other settings than the store was made with. Only a τ that was left open may differ."""
    kept = replace(store.settings, tau=settings.tau) if settings.tau is None else store.settings
    differing = [f.name for f in fields(settings) if getattr(kept, f.name) != getattr(settings, f.name)]
    if differing:
        raise InvalidInputError(f"{store.path} was made with other parameters: {', '.join(differing)} differ")
