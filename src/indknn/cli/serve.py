"""`indknn serve`, the HTTP service, and `indknn cluster`, which runs Ray for its shards."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from click.core import ParameterSource

from indknn.cli.options import JSON, STORE, WITNESS, StorePlace, parameter_options, show, wanted
from indknn.cluster import local_cluster
from indknn.cluster.ray_hosts import LOOPBACK, QUIET, connected, end_shards, ray_cluster, refuse_exposed, shards_named
from indknn.engine import MakeShard
from indknn.errors import InvalidInputError, meant
from indknn.place import Place
from indknn.settings import SERVER, ServerOptions
from indknn.types import FloatArray

_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)
_TOKEN = click.option(
    "--token-file",
    type=_FILE,
    help="The secret that every node must show: at least 32 characters, the same file on all nodes.",
)
_RAY = click.option("--ray", "address", required=True, metavar="ADDRESS", help="Where Ray is, as 10.0.0.1:6379.")
PREFIX: Final = "INDKNN"
TABLE: Final = "server"
_NOT_SETTINGS: Final = {"config", "print_config", "help"}
_OTHERS: Final = {"home", "native"}  # variables that belong to other parts of the program
_FROM = "indknn.config"


# Options from a file or the environment. The command line goes before the environment, and that before the file


def _read(context: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Let the file give the defaults of the command, and refuse what it cannot mean."""
    known = {one.name: one for one in context.command.params if one.name and one.name not in _NOT_SETTINGS}
    _refuse_misspelt_variables(known)
    if path is None:
        return
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"{path} cannot be read as TOML: {error}") from None
    _refuse_unknown(f"{path}: there is no table", tables, [TABLE])
    given = tables.get(TABLE, {})
    if not isinstance(given, dict):
        raise InvalidInputError(f"{path}: {TABLE} must be a table, as [{TABLE}]")
    _refuse_unknown(f"{path}: [{TABLE}] has no setting", given, known)
    context.default_map = {name: _checked(f"{path}: {name}", known[name], value) for name, value in given.items()}
    context.meta[_FROM] = path


CONFIG = click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    is_eager=True,
    expose_value=False,
    callback=_read,
    help="A TOML file with a table [server]. Its keys are these options, with _ for -. Variables of the environment, "
    "as INDKNN_PORT, go before it, and options on the command line before both.",
)
PRINT_CONFIG = click.option(
    "--print-config", is_flag=True, help="Only print all settings as such a file, and where each came from."
)


def show_config() -> None:
    """Print the settings in use, in the form of the file, each with where it came from."""
    context = click.get_current_context()
    click.echo(f"[{TABLE}]")
    for one in context.command.params:
        if one.name in context.params and one.name not in _NOT_SETTINGS:
            value, source = context.params[one.name], _source(context, one.name)
            line = f"# {one.name} is not set" if value is None else f"{one.name} = {_toml(value)}"
            click.echo(f"{line}{'' if value is None else f'  # {source}'}")


def _source(context: click.Context, name: str) -> str:
    where = context.get_parameter_source(name)
    if where is ParameterSource.ENVIRONMENT:
        return f"from the environment: {PREFIX}_{name.upper()}"
    if where is ParameterSource.DEFAULT_MAP:
        return f"from {context.meta[_FROM]}"
    return "from the command line" if where is ParameterSource.COMMANDLINE else "the default"


def _toml(value: Any) -> str:
    """A value as TOML writes it.

    >>> _toml(True), _toml(float("inf")), _toml(0.5), _toml(Path("a b"))
    ('true', 'inf', '0.5', '"a b"')
    """
    if isinstance(value, tuple):
        return _toml(value[0]) if len(value) == 1 else f"[{', '.join(map(_toml, value))}]"
    return str(value).lower() if isinstance(value, bool | int | float) else json.dumps(str(value), ensure_ascii=False)


def _checked(where: str, option: click.Parameter, value: Any) -> Any:
    """A value of the file, if it is of the kind that the option takes. The option itself checks the rest."""
    if option.name in SERVER:
        return value if value == "none" and SERVER[option.name].none else SERVER[option.name].check(where, value)
    kind = bool if getattr(option, "is_flag", False) else int if option.type is click.INT else str
    several = option.nargs == -1
    each = value if several and isinstance(value, list) else [value]
    if not all(type(one) is kind for one in each):
        words = {bool: "true or false", int: "a whole number", str: "a text"}
        raise InvalidInputError(f"{where} must be {words[kind]}, got {value!r}")
    return each if several else value


def _refuse_unknown(words: str, given: Iterable[str], known: Iterable[str]) -> None:
    names = list(known)
    for name in given:
        if name not in names:
            raise InvalidInputError(f"{words} {name!r}{meant(name, names)}")


def _refuse_misspelt_variables(known: Iterable[str]) -> None:
    """Refuse a variable that is almost a setting. Others may belong to another program, and are left alone."""
    names = [f"{PREFIX}_{name.upper()}" for name in (*known, *_NOT_SETTINGS, *_OTHERS)]
    short = [name.removeprefix(PREFIX) for name in names]
    for name in os.environ:
        if name.startswith(f"{PREFIX}_") and meant(name.removeprefix(PREFIX), short):
            _refuse_unknown("the environment: there is no setting", [name], names)


# The commands


@click.command("serve", context_settings={"auto_envvar_prefix": PREFIX})
@click.argument("store", type=StorePlace(), envvar=f"{PREFIX}_STORE", nargs=-1, required=True)
@CONFIG
@PRINT_CONFIG
@parameter_options("host", "port", of=SERVER)
@click.option("--name", help=f"{SERVER['name'].help} For one store. Default: the name of the store's file.")
@click.option(
    "--texts", metavar="MODEL", help="Also take texts. This sentence-transformer (name or folder) embeds them."
)
@parameter_options("tick", "train_every", of=SERVER)
@click.option("--shards", type=int, help="Search in this many processes: on this machine, or with --ray on Ray.")
@click.option("--ray", metavar="ADDRESS", help="Run the shards on Ray at this address; see `indknn cluster`.")
@parameter_options("rewrite_every", of=SERVER)
@WITNESS
@click.option("--tls-cert", type=_FILE, help="A certificate (PEM), with --tls-key.")
@click.option("--tls-key", type=_FILE, help="The private key of the certificate (PEM).")
@click.option("--behind-proxy", is_flag=True, help="A proxy in front encrypts, so allow --host without TLS.")
@click.option("--open-on-loopback", is_flag=True, help="Serve this machine without keys, although the store had keys.")
@parameter_options("max_batch", "max_body", "max_records", "max_waiting", "max_bodies", of=SERVER)
@parameter_options("max_connections", "keep_requests", "backups", "same_people", "log", of=SERVER)
def serve_command(
    store: tuple[Place, ...],
    print_config: bool,
    witness: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    behind_proxy: bool,
    open_on_loopback: bool,
    name: str | None,
    texts: str | None,
    shards: int | None,
    ray: str | None,
    **options: Any,
) -> None:
    """Answer queries over HTTP from one or more stores. On SIGTERM the server sends what was charged, and stops.

    Without keys, everybody on this machine may do everything, and other machines have no access. `indknn keys create`
    makes keys. New and revoked keys take effect at once. A store that had keys is not served without them. Open the
    server's address in a browser to see the console.

    With several stores, each has its own keys, and the key of a request says which store is asked. --witness is a
    folder then.

    Every option can also be in a file (--config) or in the environment, as INDKNN_PORT.

    \b
    Examples:
      indknn serve people.store
      indknn serve --config /etc/indknn/server.toml
      indknn serve people.store --tick 0.05 --witness /other/disk/people.witness
      indknn serve people.store --shards 4
      indknn serve hospital.store school.store --same-people
      indknn serve people.store --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem
    """
    with wanted("server"):
        from indknn.server.serve import serve  # noqa: PLC0415
    tls = _certificate(tls_cert, tls_key)
    if name is not None and len(store) > 1:
        raise InvalidInputError("--name is for one store; several are called as their files")
    served = [ServerOptions(name=name or name_of(place), **options) for place in store]
    if print_config:
        show_config()
        return
    with ExitStack() as clusters:
        serve(
            store,
            options=served,
            witness=witness,
            make_shards=[clusters.enter_context(shards_of(place, shards, ray)) for place in store],
            tls=tls,
            behind_proxy=behind_proxy,
            open_on_loopback=open_on_loopback,
            embed=None if texts is None else _sentences(texts),
            ready=lambda url: click.echo(f"{', '.join(map(str, store))} at {url}"),
        )


def _certificate(cert: Path | None, key: Path | None) -> tuple[Path, Path] | None:
    """The certificate and its key. None without TLS."""
    if (cert is None) != (key is None):
        raise InvalidInputError("--tls-cert and --tls-key belong together: give both or none")
    return None if cert is None or key is None else (cert, key)


def name_of(store: Place) -> str:
    """The default name of the model: the name of the store's file.

    >>> name_of(Path("data/people (2026).store"))
    'people-2026'
    """
    return "-".join(re.findall(r"[A-Za-z0-9_.-]+", store.stem)) or "indknn"


def _sentences(model: str) -> Callable[[list[str]], FloatArray]:
    """A function from texts to rows. It takes one text at a time, because in a batch the last bits of a row may depend
    on other texts (rule 1)."""
    from indknn.features import SentenceTransformer  # noqa: PLC0415

    extractor = SentenceTransformer(model)
    return lambda texts: np.concatenate([extractor([text]) for text in texts]).astype(np.float64)


def cluster_name(store: Any) -> str:
    """The name in Ray for the shards of a store. Each store has a different name, wherever it is kept."""
    where = str(store.resolve() if isinstance(store, Path) else store)
    return f"{Path(where).stem}-{hashlib.blake2b(where.encode(), digest_size=6).hexdigest()}"


@contextmanager
def shards_of(store: Any, shards: int | None, address: str | None) -> Iterator[MakeShard | None]:
    """A function that makes the shards of a served store: in other processes here, or on Ray.

    None if the store is searched in this process.
    """
    if address is None and shards is None:
        yield None
        return
    if address is not None and shards is None:
        raise InvalidInputError("--ray needs --shards, the number of shards")
    number = shards or 0
    cluster = local_cluster(number) if address is None else ray_cluster(address, number, name=cluster_name(store))
    with cluster:
        yield cluster.new_shard


@click.group("cluster")
def cluster_group() -> None:
    """Run Ray on many machines, for `indknn serve --ray ADDRESS --shards N`."""


@cluster_group.command("start")
@click.option("--address", default="127.0.0.1", show_default=True, help="The address of this machine to listen on.")
@click.option("--port", default=6379, show_default=True, help="The port of the head node.")
@click.option("--join", metavar="ADDRESS", help="Join the head node at this address, as 10.0.0.1:6379.")
@_TOKEN
@click.option("--cores", type=int, help="How many cores shards may use on this machine. Default: all.")
def start(address: str, port: int, join: str | None, token_file: Path | None, cores: int | None) -> None:
    """Start Ray on this machine, in the foreground, only for shards: no dashboard, no usage statistics.

    Beyond this machine you need a token, because anybody who can reach Ray may run any code. For TLS, use Ray's own
    settings: RAY_USE_TLS=1 with RAY_TLS_SERVER_CERT, RAY_TLS_SERVER_KEY and RAY_TLS_CA_CERT in the environment of all
    nodes.

    \b
    Examples:
      indknn cluster start
      indknn cluster start --address 10.0.0.1 --token-file token
      indknn cluster start --address 10.0.0.2 --join 10.0.0.1:6379 --token-file token
    """
    if token_file is None:
        refuse_exposed(f"{address}:{port}")
    environment = {**os.environ, **QUIET, **(LOOPBACK if address == "127.0.0.1" else {})}
    if token_file is not None:
        token = {"RAY_AUTH_TOKEN_PATH": str(token_file.resolve()), "RAY_AUTH_TOKEN": ""}  # Ray would prefer the latter
        environment |= {"RAY_AUTH_MODE": "token", **token}
    where = ["--address", join] if join else ["--head", "--port", str(port), "--include-dashboard=false"]
    limit = [] if cores is None else ["--num-cpus", str(cores)]
    program = "from ray.scripts.scripts import main; main()"
    arguments = ["start", "--block", "--disable-usage-stats", "--node-ip-address", address, *where, *limit]
    sys.stdout.flush()
    # Ray replaces this process, so it gets the signals.
    os.execve(sys.executable, [sys.executable, "-c", program, *arguments], environment)


@cluster_group.command("status")
@STORE
@_RAY
@JSON
def status(store: Path, address: str, in_json: bool) -> None:
    """Show the nodes of Ray, and which shards of a store there are."""
    ray = connected(address)
    nodes = [
        {"address": node["NodeManagerAddress"], "alive": node["Alive"], "cores": node["Resources"].get("CPU", 0)}
        for node in ray.nodes()
    ]
    found = {"name": cluster_name(store), "shards": shards_named(cluster_name(store)), "nodes": nodes}
    lines = [f"node {node['address']}: {node['cores']:g} cores{'' if node['alive'] else ', gone'}" for node in nodes]
    show(found, in_json, *lines, f"shards of {store}: {len(found['shards'])}")


@cluster_group.command("rebalance")
@STORE
@_RAY
def rebalance(store: Path, address: str) -> None:
    """Stop the shards of a store that is served. They start again, spread over all nodes that there are now.

    The next query gets an error and may be asked again. It makes the service fill the new shards from the store.
    To change the number of shards, start `indknn serve` again with another --shards. You need nothing else.
    """
    connected(address)
    click.echo(f"ended {end_shards(cluster_name(store))} shards of {store}")
