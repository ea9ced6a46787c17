"""`indknn serve`, the HTTP service, and `indknn cluster`, which runs Ray for its shards."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np

from indknn.cli.options import JSON, STORE, WITNESS, parameter_options, show, wanted
from indknn.cluster import local_cluster
from indknn.cluster.ray_hosts import LOOPBACK, QUIET, connected, end_shards, ray_cluster, refuse_exposed, shards_named
from indknn.engine import MakeShard
from indknn.errors import InvalidInputError
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


@click.command("serve")
@STORE
@parameter_options("host", "port", of=SERVER)
@click.option("--name", help=f"{SERVER['name'].help} Default: the name of the store's file.")
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
@parameter_options("max_batch", "max_body", "max_records", "max_bodies", "max_connections", "keep_requests", of=SERVER)
def serve_command(
    store: Place,
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
    """Answer queries over HTTP from a store. On SIGTERM the server sends what was charged, and stops.

    Without keys, everybody on this machine may do everything, and other machines have no access. `indknn keys create`
    makes keys. New and revoked keys take effect at once. A store that had keys is not served without them. Open the
    server's address in a browser to see the console.

    \b
    Examples:
      indknn serve people.store
      indknn serve people.store --tick 0.05 --witness /other/disk/people.witness
      indknn serve people.store --shards 4
      indknn serve people.store --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem
    """
    with wanted("server"):
        from indknn.server.serve import serve  # noqa: PLC0415
    if (tls_cert is None) != (tls_key is None):
        raise InvalidInputError("--tls-cert and --tls-key belong together: give both or none")
    served = ServerOptions(name=name or name_of(store), **options)
    tls = None if tls_cert is None or tls_key is None else (tls_cert, tls_key)
    with shards_of(store, shards, ray) as make_shard:
        serve(
            store,
            options=served,
            witness=witness,
            make_shard=make_shard,
            tls=tls,
            behind_proxy=behind_proxy,
            open_on_loopback=open_on_loopback,
            embed=None if texts is None else _sentences(texts),
            ready=lambda url: click.echo(f"{store} at {url}"),
        )


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
