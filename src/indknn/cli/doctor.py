"""Checks that open no store: `indknn doctor`, of this machine, and `indknn check`, of what a store has signed."""

from __future__ import annotations

import os
import platform
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import asdict
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click

from indknn import __version__
from indknn.cli.options import FILE, JSON, StorePlace, show
from indknn.core.noise import SecureNoise
from indknn.errors import InvalidInputError, StoreError, to_install
from indknn.place import Address, Place
from indknn.proof import PublicKey, check, read_keys
from indknn.records.indexes.scan import levels, make_scanner

_SYNCS = 20
_PACKAGES = (
    "numpy", "scipy", "scikit-learn", "apsw", "psycopg", "ray", "click", "fastapi", "uvicorn", "pyarrow", "onnxruntime",
)  # fmt: skip
_HEADER = b"SQLite format 3\x00"


@click.command("doctor")
@click.argument("store", type=StorePlace(), required=False)
@JSON
@click.pass_context
def doctor(ctx: click.Context, store: Place | None, in_json: bool) -> None:
    """Check this machine and, if you name a store, its disk and files. The exit code is 1 if something is unfit.

    Include the output when you report a bug. It contains nothing about people. The store itself is not
    opened. To check its contents, use `indknn verify`.

    \b
    Example:
      indknn doctor people.store
    """
    found = list(checks(store))
    facts = [{"ok": ok, "what": what, "found": seen} for ok, what, seen in found]
    show(facts, in_json, *(f"{'ok  ' if ok else 'BAD '} {what:<24}{seen}" for ok, what, seen in found))
    ctx.exit(0 if all(ok for ok, _, _ in found) else 1)


def checks(store: Place | None) -> Iterator[tuple[bool, str, str]]:
    """The results of all checks. Each says whether it is fine, what was checked, and what was found."""
    yield True, "indknn", f"{__version__}, Python {platform.python_version()}"
    yield (
        True,
        "machine",
        f"{platform.system()} {platform.release()}, {platform.machine()}, {os.cpu_count()} cores, {_memory()}",
    )
    yield True, "packages", ", ".join(_versions())
    yield True, "scanner", f"{make_scanner().name} of {list(levels())}; built: {', '.join(_native_modules()) or 'none'}"
    try:
        import apsw  # noqa: PLC0415

        yield True, "SQLite", f"{apsw.sqlite_lib_version()} (apsw {apsw.apsw_version()})"
    except ModuleNotFoundError:
        yield False, "SQLite", to_install("apsw", "store", "a store")
    z = SecureNoise().draw(1 << 20, 2000) / float(1 << 20)
    yield (
        bool(0.9 < z.std() < 1.1 and abs(z.mean()) < 0.15),
        "noise",
        f"2,000 draws: mean {z.mean():+.3f}, spread {z.std():.3f}",
    )
    if isinstance(store, Address):
        yield (*_server(store),)
        return  # the disk of a database is not checked from here
    folder = (store.parent if store is not None else Path()).resolve()
    if not folder.is_dir():
        yield False, "folder", f"{folder} does not exist"
        return
    free = shutil.disk_usage(folder).free
    yield free > 64 << 20, "free space", f"{free >> 20:,} MiB"
    yield (*_sync(folder),)
    if store is not None and store.exists():
        mode = stat.S_IMODE(store.stat().st_mode)
        yield not mode & 0o077, "permissions", f"{mode:o}" + (": others can read it; chmod 600" if mode & 0o077 else "")
        yield (*_file_format(store),)


def _server(place: Address) -> tuple[bool, str, str]:
    try:
        from indknn.store.postgres.home import DatabaseHome  # noqa: PLC0415

        return True, "PostgreSQL", DatabaseHome(place).server()
    except ModuleNotFoundError as missing:
        return False, "PostgreSQL", to_install(str(missing.name), "postgres", "a store there")
    except StoreError as error:
        return False, "PostgreSQL", str(error)


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / (1 << 30):.1f} GiB of memory"
    except (AttributeError, OSError, ValueError):  # not on every system
        return "memory unknown"


def _versions() -> Iterator[str]:
    for name in _PACKAGES:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            continue


def _native_modules() -> list[str]:
    """The C extensions that were built with this installation."""
    files = Path(__file__).parents[1].rglob("_*")
    return sorted({file.name.partition(".")[0] for file in files if file.name.endswith(tuple(EXTENSION_SUFFIXES))})


def _file_format(store: Path) -> tuple[bool, str, str]:
    """The format of a store file, from the first bytes that SQLite writes. So the store is not opened or locked."""
    with store.open("rb") as file:
        head = file.read(100)
    known = head.startswith(_HEADER)
    found = (
        f"schema {int.from_bytes(head[60:64], 'big')}, {store.stat().st_size >> 10:,} KiB" if known else "not a store"
    )
    return known, "file format", found


def _sync(folder: Path) -> tuple[bool, str, str]:
    probe = folder / f".indknn-probe-{os.getpid()}"
    try:
        with probe.open("wb") as file:
            start = time.perf_counter()
            for _ in range(_SYNCS):
                file.write(bytes(4096))
                file.flush()
                os.fsync(file.fileno())
            took = (time.perf_counter() - start) / _SYNCS * 1e3
    except OSError as error:
        return False, "durable writes", str(error)
    finally:
        probe.unlink(missing_ok=True)
    return True, "durable writes", f"{took:.2f} ms per fsync"


@click.command("check")
@FILE
@click.option("--key", required=True, help="The public key of the store, or a file that holds it (indknn keys public).")
@JSON
@click.pass_context
def check_command(ctx: click.Context, file: Path, key: str, in_json: bool) -> None:
    """Check a receipt or an exported audit trail, with nothing but the public key of its store.

    The signature must be of this key. In a trail, every entry must fit the one before it, and the trail must end where
    its signed head says. The first entry that is wrong is named. The exit code is 1 if anything is wrong.

    \b
    Examples:
      indknn keys public patients.store --json > patients.pub
      indknn check receipt.json --key patients.pub
      indknn check audit.jsonl --key patients.pub
    """
    keys = _keys(key)
    with file.open(encoding="utf-8", errors="replace") as lines:
        found = check(lines, keys)
    facts = {"ok": found.problem is None, **asdict(found)}
    about = f"{found.what} of store {found.store}, {found.at}"
    length = "" if found.entries is None else f", all {found.entries:,} entries"
    show(facts, in_json, f"{file}: {found.problem}" if found.problem else f"{file} is genuine: {about}{length}")
    ctx.exit(1 if found.problem else 0)


def _keys(given: str) -> list[PublicKey]:
    """The keys in a file, or the key that was typed."""
    path = Path(given)
    try:
        return read_keys(path.read_text(encoding="utf-8") if path.is_file() else given)
    except UnicodeDecodeError:
        raise InvalidInputError(f"{path} does not hold a public key of a store") from None
