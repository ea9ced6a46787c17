"""Analysts are declared before they ask a store."""

from indknn.store import Store


def declared(model, *names):
    """The same store, which these analysts may ask now. In memory everybody may ask."""
    for name in names:
        if isinstance(model, Store):
            model.add_analyst(name)
    return model
