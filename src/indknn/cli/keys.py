"""`indknn keys`: who may use a server, and for what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from indknn.cli.options import JSON, STORE, show
from indknn.errors import InvalidInputError, StoreLockedError
from indknn.place import Place, place_of
from indknn.store import Store, keyfile
from indknn.store.analysts import read_limits


@click.group("keys")
def keys() -> None:
    """Make, list and revoke API keys for the server of a store. Changes take effect at once, also while it runs.

    \b
    Roles:
      analyst   asks for predictions, charged to the ledger of its name
      curator   adds and removes records, forgets people, purges, sees status and statements
      owner     sees one person's own statement, and can have them forgotten (--owner)
      auditor   sees status, audit trail and metrics, no names; changes nothing
      admin     all of it
    """


@keys.command("create")
@STORE
@click.option("--role", type=click.Choice(keyfile.ROLES), required=True)
@click.option("--name", required=True, help="Whose key it is. Keys of one name share one analyst's ledger.")
@click.option("--owner", help="The person whom an owner key is for.")
@click.option("--rate", type=float, help="At most this many queries per second.")
@click.option("--max-queries", type=int, help="At most this many answers for this analyst in all.")
@click.option("--epsilon", type=float, help="A smaller epsilon than the store's, for everything this analyst is told.")
@JSON
def create(store: Place, role: str, name: str, epsilon: float | None, in_json: bool, **limits: Any) -> None:
    """Make a key. It is printed once and not stored: the file holds only a keyed hash.

    \b
    Examples:
      indknn keys create people.store --role analyst --name alice --rate 50 --max-queries 10000
      indknn keys create people.store --role analyst --name bob --epsilon .25
      indknn keys create people.store --role owner --name ann --owner ann
    """
    _refuse_missing(store)
    if epsilon is not None:  # first, because a key must not exist if its limit could not be written
        _give_less(store, role, name, epsilon)
    key, text = keyfile.create(keyfile.keys_path(store), role, name, **limits)
    keyfile.remember_keys(place_of(store))
    _show_new(key, text, in_json)


@keys.command("rotate")
@STORE
@click.argument("key", metavar="ID")
@JSON
def rotate(store: Place, key: str, in_json: bool) -> None:
    """Replace a key by a new one for the same holder, with the same limits. The old key is revoked."""
    _refuse_missing(store)
    _show_new(*keyfile.rotate(keyfile.keys_path(store), key), in_json)


@keys.command("list")
@STORE
@JSON
def show_keys(store: Place, in_json: bool) -> None:
    """List all keys, also revoked ones. Only the facts about them: nobody but its holder knows a key."""
    _refuse_missing(store)
    found, given = keyfile.read_key_file(keyfile.keys_path(store)), read_limits(store)
    rows = [{k: v for k, v in vars(key).items() if k != "digest"} for key in found.keys]
    for row in rows:
        row["epsilon"] = given.get(row["name"]) if given is not None and row["role"] in keyfile.ASKING else None
    if given is None:
        click.echo("note: somebody has the store open, so epsilon is not listed; its server lists it", err=True)
    nobody = "no keys: a server lets everybody on this machine do everything, unless the store once had keys"
    show(rows, in_json, *([_line(row) for row in rows] or [nobody]))


def _line(row: dict[str, Any]) -> str:
    limits = [f"{row['rate']:g}/s"] if row["rate"] is not None else []
    limits += [f"at most {row['max_queries']:,} queries"] if row["max_queries"] is not None else []
    limits += [f"epsilon = {row['epsilon']:g}"] if row["epsilon"] is not None else []
    limits += [f"owner {row['owner']}"] if row["owner"] is not None else []
    end = f"revoked {row['revoked']}" if row["revoked"] else "in use"
    return f"{row['id']}  {row['role']:<8}{row['name']:<20}{end}  {', '.join(limits)}".rstrip()


@keys.command("revoke")
@STORE
@click.argument("key", metavar="ID|NAME")
@JSON
def revoke(store: Place, key: str, in_json: bool) -> None:
    """Revoke a key by its id, or all keys of a name. A running server refuses them within a second."""
    _refuse_missing(store)
    gone = keyfile.revoke(keyfile.keys_path(store), key)
    facts = [{"id": k.id, "name": k.name, "revoked": k.revoked} for k in gone]
    show(facts, in_json, *(f"revoked {k.id} ({k.role} {k.name})" for k in gone))


def _give_less(store: Place, role: str, name: str, epsilon: float) -> None:
    keyfile.check_may_ask(role)
    try:
        with Store(store) as opened:
            opened.limit_analyst(name, epsilon)
            settings = opened.settings
    except StoreLockedError as error:
        raise StoreLockedError(f"{error}; while a server has it, give an epsilon in its console or API") from None
    if settings.advised and not settings.seen_by(name).advised:
        click.echo(
            f"note: the shared model may take more than epsilon = {epsilon:g}, so votes alone will answer {name}; "
            "a store that is made with a smaller --prior-share leaves more to each analyst",
            err=True,
        )


def _show_new(key: keyfile.Key, text: str, in_json: bool) -> None:
    facts = {"id": key.id, "name": key.name, "role": key.role, "key": text}
    show(facts, in_json, f"key {key.id} for {key.name} ({key.role}); it is shown this once:", text)


def _refuse_missing(store: Place) -> None:
    if isinstance(store, Path) and not store.is_file():
        raise InvalidInputError(f"{store} does not exist; make a store with: indknn init {store}")
