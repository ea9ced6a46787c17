"""`indknn keys`: who may use a server, and for what."""

from __future__ import annotations

from pathlib import Path

import click

from indknn.cli.extras import wanted
from indknn.cli.files import as_json
from indknn.errors import InvalidInputError

_STORE = click.argument("store", type=click.Path(path_type=Path))
_JSON = click.option("--json", "as_text", is_flag=True, help="Print JSON.")
_ROLES = ["analyst", "curator", "owner", "auditor", "admin"]


@click.group("keys")
def keys() -> None:
    """Make, list and revoke the API keys of a store's server. They work at once, also while it runs.

    \b
    Roles:
      analyst   asks for predictions, charged to the ledger of its name
      curator   adds and removes records, forgets people, sees status and statements
      owner     sees one person's own statement, and can have them forgotten (--owner)
      auditor   sees status, audit trail, statements and metrics; changes nothing
      admin     all of it
    """


@keys.command("create")
@_STORE
@click.option("--role", type=click.Choice(_ROLES), required=True)
@click.option("--name", required=True, help="Whose key it is. Keys of one name share one analyst's ledger.")
@click.option("--owner", help="The person that an owner key is for.")
@click.option("--rate", type=float, help="Queries per second.")
@click.option("--max-queries", type=int, help="Answers that this analyst may be given in all.")
@_JSON
def create(
    store: Path,
    role: str,
    name: str,
    owner: str | None,
    rate: float | None,
    max_queries: int | None,
    as_text: bool,
) -> None:
    """Make a key. It is printed once and kept nowhere: the file holds a keyed hash.

    \b
    Examples:
      indknn keys create people.store --role analyst --name alice --rate 50 --max-queries 10000
      indknn keys create people.store --role owner --name ann --owner ann
    """
    with wanted("server"):
        from indknn.server import keys as book  # noqa: PLC0415
    _refuse_missing(store)
    key, text = book.create(book.keys_path(store), role, name, owner=owner, rate=rate, max_queries=max_queries)
    if as_text:
        click.echo(as_json({"id": key.id, "name": name, "role": role, "key": text}))
    else:
        click.echo(f"key {key.id} for {name} ({role}); it is shown this once:\n{text}")


@keys.command("list")
@_STORE
@_JSON
def show(store: Path, as_text: bool) -> None:
    """List the keys, the revoked ones too. The keys themselves are not known to anybody but their holders."""
    with wanted("server"):
        from indknn.server import keys as book  # noqa: PLC0415
    _refuse_missing(store)
    found = book.read_key_file(book.keys_path(store))
    rows = [{k: v for k, v in vars(key).items() if k != "digest"} for key in found.keys]
    if as_text:
        click.echo(as_json(rows))
        return
    for row in rows:
        limits = [f"{row['rate']:g}/s"] if row["rate"] is not None else []
        limits += [f"at most {row['max_queries']:,} queries"] if row["max_queries"] is not None else []
        limits += [f"owner {row['owner']}"] if row["owner"] is not None else []
        end = f"revoked {row['revoked']}" if row["revoked"] else "in use"
        click.echo(f"{row['id']}  {row['role']:<8}{row['name']:<20}{end}  {', '.join(limits)}".rstrip())
    if not rows:
        click.echo("no keys: a server of this store listens on loopback only, and lets everybody there do everything")


@keys.command("revoke")
@_STORE
@click.argument("key", metavar="ID|NAME")
@_JSON
def revoke(store: Path, key: str, as_text: bool) -> None:
    """Revoke a key by its id, or all keys of a name. A running server refuses them within a second."""
    with wanted("server"):
        from indknn.server import keys as book  # noqa: PLC0415
    _refuse_missing(store)
    gone = book.revoke(book.keys_path(store), key)
    if as_text:
        click.echo(as_json([{"id": k.id, "name": k.name, "revoked": k.revoked} for k in gone]))
    else:
        click.echo("\n".join(f"revoked {k.id} ({k.role} {k.name})" for k in gone))


def _refuse_missing(store: Path) -> None:
    if not store.is_file():
        raise InvalidInputError(f"{store} does not exist; make a store with: indknn init {store}")
