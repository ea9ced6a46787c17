"""`indknn keys`: who may use a server, and for what; `indknn analysts`: who may ask a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from indknn.cli.inspection import looking
from indknn.cli.options import JSON, STORE, WITNESS, show
from indknn.errors import InvalidInputError, StoreLockedError, missing
from indknn.ledger.figures import guarantee
from indknn.place import Place, place_of
from indknn.store import Store, keyfile
from indknn.store.analysts import read_limits
from indknn.store.chain import published
from indknn.store.reports import answers_by_analyst


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
@WITNESS
@JSON
def create(
    store: Place, role: str, name: str, epsilon: float | None, witness: Any, in_json: bool, **limits: Any
) -> None:
    """Make a key. It is printed once and not stored: the file holds only a keyed hash.

    \b
    Examples:
      indknn keys create people.store --role analyst --name alice --rate 50 --max-queries 10000
      indknn keys create people.store --role analyst --name bob --epsilon .25
      indknn keys create people.store --role owner --name ann --owner ann
    """
    _refuse_missing(store)
    if epsilon is not None:  # first, because a key must not exist if its limit could not be written
        keyfile.check_may_ask(role)
        declare(store, name, epsilon, witness)
    key, text = keyfile.create(keyfile.keys_path(store), role, name, **limits)
    keyfile.remember_keys(place_of(store), key)
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


@keys.command("public")
@STORE
@WITNESS
@JSON
def public(store: Place, witness: Path | None, in_json: bool) -> None:
    """Show the public keys with which receipts and exported audit trails are checked (indknn check).

    Give them to whoever must be able to check, best when the store is made. Keys that were replaced are listed too.

    \b
    Example:
      indknn keys public patients.store --json > patients.pub
    """
    try:
        with looking(store, witness) as opened:
            facts = published(opened.db)
    except StoreLockedError as error:
        raise StoreLockedError(f"{error}; its server publishes the keys too, at /v1/signing-key") from None
    show(facts, in_json, *(f"{key['key']}  since {key['since']}{_ended(key)}" for key in facts["keys"]))


def _ended(key: dict[str, Any]) -> str:
    return "" if key["until"] is None else f", replaced {key['until']}"


@keys.command("renew-signing")
@STORE
@WITNESS
@JSON
def renew_signing(store: Place, witness: Path | None, in_json: bool) -> None:
    """Sign with a new key from now on, for instance because a copy of the store was stolen.

    What was signed before stays valid. A document that is signed with the old key and has a later date is refused.
    """
    with Store(store, witness=witness) as opened:
        opened.renew_signing_key()
        facts = published(opened.db)
    show(facts, in_json, f"the new public key is {facts['keys'][-1]['key']}; publish it: indknn keys public {store}")


def _show_new(key: keyfile.Key, text: str, in_json: bool) -> None:
    facts = {"id": key.id, "name": key.name, "role": key.role, "key": text}
    show(facts, in_json, f"key {key.id} for {key.name} ({key.role}); it is shown this once:", text)


def _refuse_missing(store: Place) -> None:
    if isinstance(store, Path) and not store.is_file():
        raise InvalidInputError(missing(store, f"; make a store with: indknn init {store}"))


@click.group("analysts")
def analysts() -> None:
    """Declare and list the analysts of a store. Each has a budget of their own with every person.

    A name that was not declared cannot ask, because a misspelt name would be a second budget. A key of role analyst or
    admin declares its name. Who asks without a name needs no declaration.
    """


@analysts.command("add")
@STORE
@click.argument("name")
@click.option("--epsilon", type=float, help="A smaller epsilon than the store's, for everything this analyst is told.")
@WITNESS
@JSON
def add(store: Place, name: str, epsilon: float | None, witness: Path | None, in_json: bool) -> None:
    """Let an analyst ask, from now on. Each new name is a new budget with every person.

    A name has no spaces around it. To add a name again changes nothing, and gives nothing back. No name can be removed,
    because what people have spent with an analyst stays spent.

    \b
    Examples:
      indknn analysts add patients.store alice
      indknn analysts add patients.store bob --epsilon .25
    """
    new = declare(store, name, epsilon, witness)
    words = f"{name} may ask {store} from now on" if new else f"{name} could ask {store} before; nothing is given back"
    show({"analyst": name, "new": new, "epsilon": epsilon}, in_json, words)


def declare(store: Place, name: str, epsilon: float | None, witness: Path | None = None) -> bool:
    """Declare an analyst of a store that nobody has open. Returns whether this is a new one."""
    try:
        with Store(store, witness=witness) as opened:
            new, settings = opened.add_analyst(name, epsilon), opened.settings
    except StoreLockedError as error:
        raise StoreLockedError(f"{error}; while a server has it, make a key in its console or API") from None
    if settings.advised and not settings.seen_by(name).advised:
        click.echo(
            f"note: the shared model may take more than epsilon = {epsilon:g}, so votes alone will answer {name}; "
            "a store that is made with a smaller --model-share leaves more to each analyst",
            err=True,
        )
    return new


@analysts.command("list")
@STORE
@WITNESS
@JSON
def list_analysts(store: Place, witness: Any, in_json: bool) -> None:
    """List the analysts who may ask, with their epsilon and how many answers each was given."""
    with Store(store, witness=witness) as opened:
        given, settings = answers_by_analyst(opened), opened.settings
        everybody: list[str | None] = [*([None] if None in given else []), *opened.analysts]
        rows = [
            {"analyst": name, "epsilon": guarantee(settings, name)["epsilon"], "answers": given.get(name, 0)}
            for name in everybody
        ]
    show(
        rows, in_json, *(map(_analyst_line, rows) if rows else ["no analysts yet; without a name anybody here can ask"])
    )


def _analyst_line(row: dict[str, Any]) -> str:
    given = "no bound" if row["epsilon"] is None else f"epsilon = {row['epsilon']:g}"
    return f"{row['analyst'] or '(no name)':<24}{given}, {row['answers']:,} answers"
