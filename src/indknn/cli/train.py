"""`indknn train`: trains the shared model when the operator or a timer asks for it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
import numpy as np

from indknn.cli.files import Columns, pieces, table_pieces
from indknn.cli.options import JSON, STORE, WITNESS, show
from indknn.cli.progress import stages
from indknn.errors import InvalidInputError
from indknn.models.shared_model import MOST_ROWS
from indknn.place import Place
from indknn.store import Store
from indknn.tables.schema import Schema
from indknn.types import FloatArray


@click.command("train")
@STORE
@WITNESS
@JSON
def train(store: Place, witness: Path | None, in_json: bool) -> None:
    """Train the shared model, or train it again if there are enough newcomers.

    Each person is charged for their own gradient, from the part of their budget that is for the model. If the model
    gets a person's records right, that person pays almost nothing. All analysts use the same model, and nobody pays
    for it again.

    A store trains the model by itself when the first query comes. Use this command to train earlier, or again from a
    timer such as cron. Never run it because certain people came or went: the time of a run is public. You can stop it
    at any time, and the next run continues.

    \b
    Example:
      indknn train patients.store
    """
    with Store(store, witness=witness) as opened, nullcontext() if in_json else stages() as bar:
        if opened.draft:
            raise InvalidInputError(f"{store} has never held records, so there is nothing to learn from")
        steps = 0
        for progress in opened.train():
            steps = progress.made
            if bar is not None:
                bar("steps of training", progress.made, progress.made + progress.follow)
        model = opened.engine.predictor.model
        assert model is not None
    card = model.card
    facts: dict[str, Any] = {"steps": steps, "rounds": model.rounds, "people_about": round(model.count)}
    words = [f"{steps} steps; about {model.count:,.0f} people, as far as noisy counts tell"]
    if not steps:
        words = ["no step: too few newcomers since the last round, as far as a noisy count tells"]
    if card is not None:
        facts |= {"accuracy": card.overall, "error": card.overall_error, "smoothed": card.smooth}
        words.append(f"the model is right about {card.overall:.3f} of the time (± {2 * card.overall_error:.3f})")
    show(facts, in_json, *words)


def public_rows(file: Path, named: Columns, schema: Schema | None) -> FloatArray:
    """The first rows of a file, as many as the model can use."""
    rows: list[FloatArray] = []
    for piece in pieces(file, named) if schema is None else table_pieces(file, schema, MOST_ROWS):
        rows.append(np.asarray(piece.X, dtype=np.float64))
        if sum(map(len, rows)) >= MOST_ROWS:
            break
    return np.concatenate(rows)[:MOST_ROWS]
