"""`indknn extract`: turns texts and images into vectors with a public model."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeAlias

import click
import numpy as np

from indknn.cli.options import JSON, LABEL, OWNER, RECORD, show, stages
from indknn.errors import InvalidInputError
from indknn.features import Extractor
from indknn.place import private_file
from indknn.tables.read import read_table
from indknn.tables.values import as_list
from indknn_lab.features import FromFiles, ImageFiles, extract, find_extractor, reads_images

_Found: TypeAlias = tuple[Any, Extractor, dict[str, Any]]


@click.command("extract")
@click.argument("source", type=click.Path(path_type=Path), metavar="IN")
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="The npz file for the features.")
@click.option(
    "--model",
    required=True,
    help="The public model: its folder, or a name: resnet50, resnet50-logits, google/vit-base-patch16-224-in21k or "
    "another size of it, or one that sentence-transformers knows, such as all-roberta-large-v1. For SimCLRv2, the "
    "folder that `python -m indknn_lab.features.simclr` has made.",
)
@click.option(
    "--prompt",
    help="The task, for a model of texts that is told it: the name of one of its prompts, or a text to put before "
    "every text.",
)
@click.option("--column", help="Column of the texts or of the names of image files. Default: text or image.")
@LABEL
@OWNER
@RECORD
@click.option("--public", is_flag=True, help="The items are public, so they may go through the model in batches.")
@JSON
def extract_command(
    source: Path,
    out: Path,
    model: str,
    prompt: str | None,
    column: str | None,
    label: str,
    owner: str,
    record: str,
    public: bool,
    in_json: bool,
) -> None:
    """Turn texts or images into vectors that `indknn add` and `indknn predict` take.

    IN is a table (csv, JSON lines, parquet, Arrow) with a column of texts or of image files, or an npz file with an
    array of uint8 images. Labels, owners and record ids are kept. Each item goes through the model separately, so that
    no person's vector depends on another person's item. You can stop the command at any time. The next run continues.

    \b
    Examples:
      indknn extract tickets.csv -o tickets.npz --model all-MiniLM-L6-v2 --column message --label topic
      indknn extract tickets.csv -o tickets.npz --model models/e5 --prompt "query: "
      indknn extract scans.csv -o scans.npz --model models/resnet --column file --owner patient
    """
    if out.suffix != ".npz":
        raise InvalidInputError(f"{out} must end in .npz")
    extractor = find_extractor(model, prompt)
    if prompt is not None and reads_images(extractor):
        raise InvalidInputError(f"--prompt is for models of texts, and {model} reads images")
    items, extractor, named = _items(source, extractor, column, {"y": label, "owners": owner, "record_ids": record})
    parts = out.with_name(out.name + ".parts")
    with stages() if not in_json else nullcontext(lambda *_: None) as progress:
        X = extract(items, extractor, parts, public=public, progress=lambda done, total: progress("items", done, total))
    with private_file(out, "wb") as file:
        arrays: dict[str, Any] = {"X": X, **{name: np.array(values) for name, values in named.items()}}
        np.savez(file, **arrays)
    shutil.rmtree(parts)
    facts = {"items": len(X), "features": X.shape[1], "model": extractor.name, "out": str(out)}
    show(facts, in_json, f"{len(X):,} items, {X.shape[1]} features each by {extractor.name}, in {out}")


def _items(source: Path, extractor: Extractor, column: str | None, roles: dict[str, str]) -> _Found:
    """The texts or images of a file, the extractor for them, and their labels, owners and record ids."""
    images = reads_images(extractor)
    if source.suffix == ".npz":
        return _from_npz(source, extractor)
    table = read_table(source)
    wanted = column or ("image" if images else "text")
    if wanted not in table:
        raise InvalidInputError(f"{source}: no column {wanted!r}, only {', '.join(table)}; name it with --column")
    named = {name: as_list(table[role]) for name, role in roles.items() if role in table}
    items = as_list(table[wanted])
    for row, item in enumerate(items):
        if not isinstance(item, str) or not item:
            raise InvalidInputError(f"{source}, row {row}: column {wanted!r} must be text, got {item!r}")
    if not images:
        return items, extractor, named
    files = [source.parent / item for item in items]
    missing = next((path for path in files if not path.is_file()), None)
    if missing is not None:
        raise InvalidInputError(f"{source}: {missing} does not exist")
    return ImageFiles(files), FromFiles(extractor), named


def _from_npz(source: Path, extractor: Extractor) -> _Found:
    if not reads_images(extractor):
        raise InvalidInputError(f"{source} must be a table with a column of texts: this model reads no images")
    with np.load(source, allow_pickle=False) as npz:
        if "images" not in npz.files:
            raise InvalidInputError(f"{source}: needs an array images, it has {', '.join(npz.files)}")
        named = {name: npz[name] for name in ("y", "owners", "record_ids") if name in npz.files}
        return npz["images"], extractor, named
