"""`indknn serve`: the HTTP service."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

from indknn.cli.options import STORE, WITNESS, parameter_options, wanted
from indknn.errors import InvalidInputError
from indknn.place import Place
from indknn.settings import SERVER, ServerOptions
from indknn.types import FloatArray

_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)


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
        from indknn.cli.cluster import shards_of  # noqa: PLC0415
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
