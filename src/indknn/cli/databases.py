"""Commands for a store in PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import click

from indknn.cli.files import as_json
from indknn.cli.options import JSON, STORE, WITNESS, show
from indknn.core.files import private_file
from indknn.place import Place
from indknn.store import Store
from indknn.store.home import home_of


@click.command("rewrite")
@STORE
@click.option("--receipt", type=click.Path(path_type=Path), help="Write the receipt to this file as well.")
@WITNESS
@JSON
def rewrite(store: Place, receipt: Path | None, witness: Path | None, in_json: bool) -> None:
    """Overwrite the old bytes of forgotten people in a database. This is the second stage of an erasure.

    It writes all tables anew and replaces the log. A store in a file does not need it. It cannot erase archives of the
    log, standbys and backups. The receipt names those that the database knows of.

    \b
    Example:
      indknn rewrite postgresql://db.example/people --receipt rewritten.json
    """
    with Store(store, witness=witness) as opened:
        facts = opened.rewrite()
    if receipt is not None:
        with private_file(receipt) as file:
            file.write(as_json(facts) + "\n")
    words = [f"{facts['stage']}, for all who were erased until {facts['erased_until']}"]
    show(facts, in_json, *words, *facts.get("why", ()), *(f"not ours: {who}" for who in facts.get("elsewhere", ())))


@click.command("takeover")
@STORE
@JSON
def takeover(store: Place, in_json: bool) -> None:
    """Take a store in PostgreSQL away from a process that you cannot stop. Nothing it does later is written.

    Then open the store as usual. You do not need this for a process that has ended.
    """
    who = home_of(store).take_over()
    show({"store": str(store), "was": who}, in_json, f"{store} was in use by {who}; it is free now")
