"""Commands for a store in PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import click

from indknn.cli.files import as_json
from indknn.cli.options import JSON, STORE, WITNESS, show
from indknn.place import Place
from indknn.store import Store
from indknn.store.home import home_of


@click.command("rewrite")
@STORE
@click.option("--receipt", type=click.Path(path_type=Path), help="Write the receipt to this file as well.")
@WITNESS
@JSON
def rewrite(store: Place, receipt: Path | None, witness: Path | None, in_json: bool) -> None:
    """Have a database write over the old bytes of those who were forgotten: the second stage of an erasure.

    It writes the tables anew and uses up the log. In a file there is nothing to do. Archives of the log, standbys and
    backups are yours: the receipt names those that the server knows of.

    \b
    Example:
      indknn rewrite postgresql://db.example/people --receipt rewritten.json
    """
    with Store(store, witness=witness) as opened:
        facts = opened.rewrite()
    if receipt is not None:
        receipt.write_text(as_json(facts) + "\n")
    words = [f"{facts['stage']}, for all who were erased until {facts['erased_until']}"]
    show(facts, in_json, *words, *facts.get("why", ()), *(f"not ours: {who}" for who in facts.get("elsewhere", ())))


@click.command("takeover")
@STORE
@JSON
def takeover(store: Place, in_json: bool) -> None:
    """Shut out a process that has a store in PostgreSQL and cannot be ended. Nothing it does later is written.

    Then open the store as usual. A process that ends lets go of the store by itself.
    """
    who = home_of(store).take_over()
    show({"store": str(store), "was": who}, in_json, f"{store} was in use by {who}; it is free now")
