"""Commands that train and ask a store, and the files with queries and answers."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from indknn.answering.trainer import Progress, TrainingLine
from indknn.cli.inspection import looking
from indknn.cli.options import (
    FEATURES,
    FILE,
    JSON,
    STORE,
    WITNESS,
    columns,
    many,
    on_terminal,
    show,
    stages_on_terminal,
    with_named_columns,
)
from indknn.core.advice import about_answers, tell
from indknn.errors import InvalidInputError, needs
from indknn.ledger.figures import training_words
from indknn.models.explanation import Explanation
from indknn.models.probabilities import Decision
from indknn.models.shared_model import STEPS
from indknn.models.shown_numbers import NumberCard
from indknn.place import Place, private, private_file
from indknn.store import Store
from indknn.tables.infer import Outside
from indknn.tables.read import VECTORS, Columns, Named, Split, naming, pieces, read_pieces
from indknn.tables.schema import ROW_IDS, Schema

ENDS = ("low", "high")
"""The columns of an interval."""
FORMATS = (".npz", ".csv", ".parquet")
"""The formats for answers."""
_BATCH = 256


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
    with Store(store, witness=witness) as opened, stages_on_terminal(not in_json) as bar:
        if opened.draft:
            raise InvalidInputError(f"{store} has never held records, so there is nothing to learn from")
        if not in_json:
            _watch_training(opened, bar)
        steps = 0
        for progress in opened.train():
            steps = progress.made
        model = opened.engine.predictor.model
        assert model is not None
    card = model.card
    facts: dict[str, Any] = {"steps": steps, "rounds": model.rounds, "people_about": round(model.count)}
    words = [f"{steps} steps; about {model.count:,.0f} people, as far as noisy counts tell"]
    if not steps:
        words = ["no step: too few newcomers since the last round, as far as a noisy count tells"]
    if isinstance(card, NumberCard):
        low, high = opened.settings.bounds or (-1.0, 1.0)
        error = 0.5 * (high - low) * card.error
        facts |= {"error": error}
        words.append(f"the model is off by about {error:.4g} (root of the mean square)")
    elif card is not None:
        facts |= {"accuracy": card.overall, "error": card.overall_error, "smoothed": card.other}
        words.append(f"the model is right about {card.overall:.3f} of the time (± {2 * card.overall_error:.3f})")
    show(facts, in_json, *words)


@click.command("predict")
@STORE
@FILE
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), required=True, help="The file for the answers: npz, csv or parquet."
)
@click.option("--analyst", help="The analyst whose ledger is charged. Analysts must not share their answers.")
@click.option(
    "--proba", is_flag=True, help="Also write the probability of each class, in columns p_CLASS. This costs no budget."
)
@click.option(
    "--interval",
    type=float,
    help="Also write an interval that holds the number in this share of the cases, such as 0.9, in columns low and "
    "high. This costs no budget.",
)
@click.option(
    "--record-id",
    "ids",
    default="",
    help="Column of the ids of the queries, which are repeated with the answers. Without it: the record id of the "
    "schema, or else record_id or id, if there is such a column that is no feature.",
)
@click.option("--min-confidence", type=float, help="Write no label where its probability is below this. Costs nothing.")
@click.option(
    "--class-weight",
    type=click.Choice(["balanced"]),
    help="balanced: treat all labels as equally common, by the noisy counts that people paid for. Costs nothing.",
)
@FEATURES
@WITNESS
@JSON
def predict(
    store: Place,
    file: Path,
    out: Path,
    analyst: str | None,
    proba: bool,
    interval: float | None,
    ids: str,
    min_confidence: float | None,
    class_weight: str | None,
    features: str | None,
    witness: Path | None,
    in_json: bool,
) -> None:
    """Answer the queries of a file. This spends people's budget: once for the shared model, then for votes.

    Every answer has the id of its query, or the number of its row. The column of the answers has the name of the label.
    After a crash, run it again: nobody pays twice for the same query.

    \b
    Examples:
      indknn predict patients.store queries.csv -o answers.csv
      indknn predict patients.store queries.csv -o answers.npz --analyst alice
      indknn predict patients.store queries.csv -o answers.csv --proba
    """
    _check_place(out, file)
    answers: list[Any] = []
    decision = Decision(min_confidence, class_weight)
    with Store(store, witness=witness) as opened, stages_on_terminal(not in_json) as bar:
        opened.check_analyst(analyst)
        if not in_json:
            _watch_training(opened, bar)
        schema = None if opened.schema is None else with_named_columns(opened.schema)
        queries = QueryColumns(schema, columns(features=features, record=ids), opened.settings.n_features)
        with file.open("rb") as bytes_of_file:
            name = hashlib.file_digest(bytes_of_file, "sha256").hexdigest()
        if interval is not None:
            opened.engine.refuse_coverage(interval)
        elif proba or not decision.plain:
            opened.engine.refuse_numbers("--proba, --min-confidence and --class-weight")
        opened.engine.refuse_unfit(decision, analyst)
        _check_queries(queries, file)  # all rows, before the first one is charged
        label = "y" if schema is None or schema.label is None else schema.label
        more = [f"p_{name}" for name in opened.settings.class_array.tolist()] if proba else ENDS if interval else None
        classes = opened.settings.class_array if proba else None
        with answers_in(out, queries.column_in(file), label, more, classes) as write:
            for piece in pieces(file, queries.split, _BATCH):
                told = _answered(opened, file, piece, f"file:{name}:{piece.first}", analyst, proba, decision, interval)
                write(told)
                answers += told.labels
                bar("queries", len(answers), None)
    tell([] if opened.settings.numeric else about_answers(answers))
    show({"answered": len(answers), "out": str(out)}, in_json, f"{many(len(answers), 'answer')} in {out}")


def _check_place(out: Path, file: Path) -> None:
    """Refuse a file that answers cannot be written to, before anybody is charged."""
    if out.suffix not in FORMATS:
        raise InvalidInputError(f"{out} must end in one of {', '.join(FORMATS)}")
    if not out.parent.is_dir():
        raise InvalidInputError(f"{out}: there is no folder {out.parent}")
    if out.exists() and out.samefile(file):
        raise InvalidInputError(f"{out} holds the queries; the answers need another file")


def _watch_training(store: Store, bar: Callable[[str, int, int | None], None]) -> None:
    """If a query begins a training, say what it costs at most, and show how far it is."""
    words = f"indknn: {training_words(store.settings)}"
    said = False

    def seen(progress: Progress | None) -> None:
        nonlocal said
        if progress is not None and not said:
            said = True
            click.echo(words, err=True)
        if said:
            made, follow = (progress.made, progress.follow) if progress is not None else (STEPS, 0)
            bar("steps of training", made, made + follow or STEPS)

    store.engine.predictor.watch = seen if on_terminal() else TrainingLine(words, True)


def _check_queries(queries: QueryColumns, file: Path) -> None:
    """Read all queries once. A wrong value is refused with its row and column, and a warning tells of odd ones."""
    if queries.schema is None or file.suffix in VECTORS:
        return
    outside = Outside(queries.schema)
    for piece in pieces(file, queries.split):
        with naming(file, piece.first):
            outside.see(piece.features)
    tell(outside.advice())


def _answered(
    store: Store,
    file: Path,
    piece: Split,
    request: str,
    analyst: str | None,
    proba: bool,
    decision: Decision,
    interval: float | None,
) -> Answers:
    name = f"{request}:{analyst or ''}"
    ids = range(piece.first, piece.first + len(piece)) if piece.record_ids is None else list(piece.record_ids)
    with naming(file, piece.first):
        if not proba and decision.plain:
            told = store.predict(piece.features, analyst, request_id=name)
            ends = None if interval is None else store.engine.intervals(told, interval, analyst).tolist()
            return Answers(ids, told.tolist(), ends)
        labels, likely = store.predict_both(piece.features, analyst, request_id=name)
        if not decision.plain:
            labels, likely = store.engine.decide(decision, labels, likely, analyst)
    return Answers(ids, labels.tolist(), likely.tolist() if proba else None)


@click.command("explain")
@STORE
@FILE
@click.option("--analyst", help="The analyst who asks. Some analysts must not see the shared model.")
@click.option(
    "--top", type=click.IntRange(1), default=5, show_default=True, help="How many columns to show of each row."
)
@FEATURES
@WITNESS
@JSON
def explain(
    store: Place,
    file: Path,
    analyst: str | None,
    top: int,
    features: str | None,
    witness: Path | None,
    in_json: bool,
) -> None:
    """Show which columns moved the shared model's answer about each row of a file. It costs no budget.

    The lead of a label over the next likely one, in logits, is the lead at an average row plus what each column adds.
    A number is that of an average row plus what each column adds. Votes of near people are not in it.

    \b
    Example:
      indknn explain patients.store queries.csv
    """
    found: list[Explanation] = []
    with looking(store, witness) as opened:
        schema = opened.schema
        split = columns(features=features).split if schema is None else schema.split_queries
        for piece in pieces(file, split, _BATCH):
            with naming(file, piece.first):
                found += opened.explain(piece.features, analyst)
    show([asdict(one) for one in found], in_json, *(_words(i, one, top) for i, one in enumerate(found)))


def _words(row: int, one: Explanation, top: int) -> str:
    moved = [f"  {added:+8.3f}  {name}" for name, added in list(one.columns.items())[:top]]
    rest = sum(list(one.columns.values())[top:])
    more = [f"  {rest:+8.3f}  {len(one.columns) - top} other columns"] if len(one.columns) > top else []
    start = f"  {one.average:+8.3f}  an average row"
    said = f"{one.label} leads {one.against} by {one.lead:.3f}" if one.against is not None else f"{one.lead:.4g}"
    return "\n".join([f"row {row}: {said}", start, *moved, *more])


# The files: queries with the ids of their rows, and answers that carry the same ids


@dataclass(frozen=True)
class Answers:
    """Labels of some queries, with the ids of their rows.

    `likely` has the probability of each class, or the ends of an interval, if that was asked for.
    """

    ids: Sequence[Any]
    labels: list[Any]
    likely: list[list[float]] | None


class QueryColumns:
    """Splits tables of queries into features and ids of rows. `column` has the ids, if a table has any.

    Without a schema, all columns are features unless `named` says otherwise, and the store has `width` of them.
    """

    def __init__(self, schema: Schema | None, named: Named, width: int):
        self.schema, self.named, self.width = schema, named, width

    def column(self, table: Columns) -> str | None:
        """The column of the ids: the one that was named, or the record id of the schema, or else record_id or id."""
        if self.named.record:
            if self.named.record not in table:
                raise InvalidInputError(f"no column {self.named.record!r}, only {', '.join(table)}")
            return self.named.record
        if self.schema is None:
            found = (name for name in ROW_IDS if name in table and name not in self.named.features)
            return next((name for name in found if self.named.features or self._fits(table, name)), None)
        return next((name for name in self.schema.row_ids if name in table), None)

    def column_in(self, file: Path) -> str | None:
        """The column of the ids in a file."""
        if file.suffix not in VECTORS:
            return next((self.column(table) for table in read_pieces(file, 1)), None)
        return next(("record_id" for piece in pieces(file, self.split, 1) if piece.record_ids is not None), None)

    def _fits(self, table: Columns, name: str) -> bool:
        """Whether the other columns are the features of the store."""
        features = replace(self.named, record=name).split({key: table[key][:1] for key in table}).features
        return bool(features.shape[1] == self.width)

    def split(self, table: Columns) -> Split:
        """The features, and the ids of the rows if the table has them."""
        name = self.column(table)
        if self.schema is None:
            return replace(self.named, record=name or "").split(table)
        return (self.schema if name is None else self.schema.with_roles(record_id=name)).split(table)


@contextmanager
def answers_in(
    path: Path, row: str | None, label: str, more: Sequence[str] | None = None, classes: Any = None
) -> Iterator[Callable[[Answers], None]]:
    """A function that writes answers to a file. Its columns are the ids of the rows, named `row`, and `label`.

    Without ids, the column `row` has the number of each row. An npz file has the arrays y and, with ids, record_ids.
    `more` are the names of further columns: p_CLASS for the probability of each class, or the ends of an interval. In
    npz they are the arrays proba and `classes`, or interval. A csv file gets every answer as soon as it was charged.
    The other formats are written at the end. A file that is there stays as it is until the first answer.
    """
    names = list(more or ())
    if path.suffix == ".csv":
        there, begun = path.exists(), False
        with open(path, "a", newline="", opener=private) as file:  # that it can be written is known before any charge
            writer = csv.writer(file, lineterminator="\n")

            def write(some: Answers) -> None:
                nonlocal begun
                if not begun:
                    if path.is_file():
                        file.truncate(0)
                    writer.writerow([row or "row", label, *names])
                    begun = True
                likely = some.likely or [[]] * len(some.labels)
                writer.writerows([i, y, *p] for i, y, p in zip(some.ids, some.labels, likely, strict=True))
                file.flush()

            try:
                yield write
                write(Answers([], [], None))
            finally:
                if not there and not begun:
                    path.unlink()
        return
    kept: list[Answers] = []
    yield kept.append
    ids, labels = [i for some in kept for i in some.ids], [y for some in kept for y in some.labels]
    likely = [p for some in kept for p in some.likely or ()]
    proba = np.array(likely, dtype=np.float64).reshape(len(likely), -1 if likely else len(names))
    if path.suffix == ".npz":
        arrays: dict[str, Any] = {} if row is None else {"record_ids": np.array(ids)}
        if more is not None:
            arrays |= {"interval": proba} if classes is None else {"proba": proba, "classes": np.array(classes)}
        with private_file(path, "wb") as archive:
            np.savez(archive, y=np.array(_texts_if_open(labels)), **arrays)
    else:
        pa, pq = (needs(name, "parquet", "a parquet file") for name in ("pyarrow", "pyarrow.parquet"))
        table = {row or "row": ids, label: labels, **dict(zip(names, proba.T, strict=True))}
        with private_file(path, "wb") as archive:
            pq.write_table(pa.table(table), archive)


def _texts_if_open(labels: list[Any]) -> list[Any]:
    """An array of npz holds one type: if some labels are left open, all are texts, and these are empty."""
    return ["" if label is None else str(label) for label in labels] if None in labels else labels
