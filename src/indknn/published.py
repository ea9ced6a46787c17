"""The shared model for others: a document that anybody may have, as JSON or as an ONNX network.

It is computed from releases that people have paid for, and from public rows. So it costs nobody anything, and may be
published with the ε and δ that it carries. Votes are not in it: its answers are those of the model alone.

The network takes vectors: for a table, those that the schema makes. It gives the same labels to the last bit of every
whole number. It is computed in float64, or in float32 where the model does so, with the same operations in the same
order.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indknn.core.quantise import LEVELS
from indknn.core.targets import MIDDLE
from indknn.core.training import table_of_softmax
from indknn.engine import Engine
from indknn.errors import InvalidInputError, PrivacyError, needs
from indknn.ledger.figures import model_promise
from indknn.models.probabilities import LEAST
from indknn.models.shared_model import ShownModel
from indknn.models.shown_numbers import ShownNumbers
from indknn.place import private_file
from indknn.tables.schema import CONSTANT, Schema, from_plain

FORMAT, VERSION = "indknn model", 1
FORMATS = (".json", ".onnx")
_OPSET, _IR = 18, 9
_FLOAT, _INT64, _DOUBLE = 1, 7, 11  # data types of ONNX


def document(engine: Engine, *, with_queries: bool = False) -> dict[str, Any]:
    """The shared model of an engine in memory, as it is shown now. `docs/guides/publish-model.md` says how to read it.

    The engine remembers it, also when it is fitted again: from now on no analyst can be promised less than the model
    may cost. A store must write that down, so use `Store.publish` there.
    """
    if engine.predictor.journal is not None:
        raise InvalidInputError("a store must remember that its model was published: use Store.publish")
    made, ledger = content(engine, with_queries=with_queries), engine.ledger
    ledger.published = max(ledger.published, made["promise"]["budget"] / (ledger.period + 1))
    return made


def content(engine: Engine, *, with_queries: bool = False) -> dict[str, Any]:
    """The document, for a caller who remembers that the model was published.

    If no public rows were declared, the first queries stand for them, and the model may need them whole. Then they are
    written only with `with_queries`.
    """
    settings, shown = engine.settings, engine.shown_to()
    if not engine.noise.secure:
        raise PrivacyError("random_state was given, so the noise of this model can be computed: it cannot be published")
    if any(not settings.seen_by(name).advised for name in settings.analysts):
        raise PrivacyError(
            "an analyst of this store was promised less than the shared model may use, and must not see it: it cannot "
            "be published"
        )
    promise = asdict(model_promise(engine))
    if promise["epsilon"] is None:
        raise PrivacyError("no epsilon is promised for this model, so it cannot be published")
    schema = None if settings.schema is None else from_plain(settings.schema)
    return {
        "format": FORMAT,
        "version": VERSION,
        "made": datetime.now(UTC).strftime("%Y-%m-%d"),
        "promise": promise,
        "n_features": settings.n_features,
        "center": None if settings.center is None else list(settings.center),
        "schema": settings.schema,
        "encoding": None if schema is None else _encoding(schema),
        "map": shown.rule.map.plain(),
        **(_of_classes(engine, shown, with_queries) if isinstance(shown, ShownModel) else _of_numbers(engine, shown)),
    }


def _of_classes(engine: Engine, shown: ShownModel, with_queries: bool) -> dict[str, Any]:
    declared, averaged, weights = engine.predictor.public, shown.averaged, shown.answering_weights
    if averaged and not with_queries and (declared is None or not np.array_equal(declared.values, shown.public)):
        raise InvalidInputError(
            "this model holds whole queries, because no public rows were declared. If they may be published, say "
            "with_queries=True (--with-queries)"
        )
    near = shown.rule.neighbours
    return {
        "classes": engine.settings.class_array.tolist(),
        "shares": shown.shares.tolist(),
        "weights": {"whole": weights.whole.astype(int).tolist(), "unit": weights.unit, **table_of_softmax()},
        "neighbours": near.plain() if averaged and near is not None else None,
        "power": shown.power,
        "least": LEAST,
    }


def _of_numbers(engine: Engine, shown: ShownNumbers) -> dict[str, Any]:
    """The number is low + (high - low)·round((1 + y)·grid)/(2·grid), and y is what the weights say, within [-1, 1]."""
    weights = shown.rule.weights
    constants = {"intercept": table_of_softmax()["intercept"], "grid": MIDDLE}
    return {
        "classes": [],
        "bounds": list(engine.settings.bounds or ()),
        "weights": {"whole": weights.whole.astype(int).tolist(), "unit": weights.unit, **constants},
    }


def _encoding(schema: Schema) -> dict[str, Any]:
    """How a row of the table becomes a vector: its columns in order, and the last coordinate."""
    columns = [{"name": name, **column.plain_encoding()} for name, column in schema.used.items()]
    return {"columns": columns, "constant": CONSTANT * sqrt(len(schema.used)), "blanks": list(schema.blanks)}


def write_model(document: dict[str, Any], path: str | Path) -> None:
    """Write the document as JSON, or as an ONNX network that holds the rest of it as metadata."""
    target = Path(path)
    if target.suffix not in FORMATS:
        raise InvalidInputError(f"{target} must end in one of {', '.join(FORMATS)}")
    if target.suffix == ".onnx":
        body = network(document)
        with private_file(target, "wb") as file:
            file.write(body)
    else:
        with private_file(target) as file:
            json.dump(document, file)


class _Graph:
    """A network in the making. Every method adds nodes and returns the name of their result."""

    def __init__(self) -> None:
        self._onnx = needs("onnx", "onnx", "an ONNX file")
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def const(self, value: npt.ArrayLike, kind: str = "f8") -> str:
        """A constant."""
        return self._keep(self._onnx.numpy_helper.from_array(np.ascontiguousarray(np.asarray(value, dtype=kind))))

    def texts(self, words: list[str]) -> str:
        """A constant list of texts."""
        return self._keep(self._onnx.helper.make_tensor("", 8, [len(words)], [word.encode() for word in words]))

    def _keep(self, tensor: Any) -> str:
        tensor.name = f"c{len(self.constants)}"
        self.constants.append(tensor)
        return str(tensor.name)

    def op(self, kind: str, *inputs: str, result: str = "", **options: Any) -> str:
        """A node. `result` is a name for what it computes."""
        name = result or f"v{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(kind, inputs, [name], **options))
        return name

    def cut(self, name: str, kind: int = _DOUBLE) -> str:
        """Rounded towards zero."""
        return self.cast(self.cast(name, _INT64), kind)

    def cast(self, name: str, kind: int) -> str:
        """The same numbers in another type."""
        return self.op("Cast", name, to=kind)

    def rows(self, kind: str, name: str) -> str:
        """A sum or a maximum over each row."""
        return self.op(kind, name, self.const([1], "i8"), keepdims=1)

    def largest(self, name: str) -> str:
        """The largest absolute entry of each row."""
        return self.rows("ReduceMax", self.op("Abs", name))

    def root(self, name: str) -> str:
        """The length of each row of whole numbers."""
        return self.op("Sqrt", self.rows("ReduceSum", self.op("Mul", name, name)))


def network(document: dict[str, Any]) -> bytes:
    """The network as the bytes of an ONNX file. Its metadata say what the document says besides numbers."""
    onnx, graph = needs("onnx", "onnx", "an ONNX file"), _Graph()
    values = _quantised(graph, document["center"])
    mapped = _mapped(graph, values, document["map"])
    tensor = onnx.helper.make_tensor_value_info
    if "bounds" in document:
        _number(graph, mapped, document)
        outputs = [tensor("label", _DOUBLE, ["rows"])]
    else:
        outputs = [tensor(*output) for output in _labels(graph, values, mapped, document)]
    made = onnx.helper.make_graph(
        graph.nodes,
        "indknn",
        [tensor("features", _DOUBLE, ["rows", document["n_features"]])],
        outputs,
        graph.constants,
    )
    model = onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", _OPSET)], ir_version=_IR)
    about = {name: document[name] for name in ("format", "version", "made", "promise", "classes", "schema", "encoding")}
    onnx.helper.set_model_props(model, {name: json.dumps(value) for name, value in about.items()})
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def _number(graph: _Graph, mapped: str, document: dict[str, Any]) -> None:
    """The number that the model says, on the grid between its bounds (`core/targets.py`)."""
    known, (low, high) = document["weights"], document["bounds"]
    grid = float(known["grid"])
    said = graph.op("Squeeze", _scores(graph, mapped, known), graph.const([1], "i8"))
    said = graph.op("Min", graph.op("Max", said, graph.const(-1.0)), graph.const(1.0))
    place = graph.op("Add", graph.op("Round", graph.op("Mul", said, graph.const(grid))), graph.const(grid))
    share = graph.op("Div", place, graph.const(2.0 * grid))
    graph.op("Add", graph.op("Mul", share, graph.const(high - low)), graph.const(low), result="label")


def _labels(graph: _Graph, values: str, mapped: str, document: dict[str, Any]) -> list[tuple[str, int, list[Any]]]:
    """The labels and the probabilities of classes. Returns the name, the type and the shape of both."""
    likely = _softmax(graph, mapped, document["weights"])
    if document["neighbours"] is not None:
        away = graph.op("Sub", _averaged(graph, values, document["neighbours"]), likely)
        likely = graph.op("Add", likely, graph.op("Mul", away, graph.const(document["neighbours"]["weight"])))
    c = len(document["classes"])
    likely = _shares(graph, graph.op("Max", likely, graph.const(document["least"] / c)))
    _shares(graph, graph.op("Pow", likely, graph.const(document["power"])), "probabilities")
    best = graph.op("ArgMax", likely, axis=1, keepdims=0)
    classes, kind = document["classes"], _INT64
    if all(isinstance(one, int) and not isinstance(one, bool) for one in classes):
        named = graph.const(classes, "i8")
    else:
        named, kind = graph.texts([str(one) for one in classes]), 8
    graph.op("Gather", named, best, result="label")
    return [("label", kind, ["rows"]), ("probabilities", _DOUBLE, ["rows", c])]


def _quantised(graph: _Graph, center: list[float] | None) -> str:
    """Rows cut to whole numbers by their largest entry (`core/quantise.py`)."""
    rows = "features" if center is None else graph.op("Sub", "features", graph.const(center))
    scaled = graph.op("Mul", graph.op("Div", rows, graph.largest(rows)), graph.const(float(LEVELS)))
    return graph.op("Round", scaled)


def _mapped(graph: _Graph, values: str, known: dict[str, Any]) -> str:
    """The features that the model sees (`models/feature_map.py`)."""
    root = graph.op("Max", graph.root(values), graph.const(1.0))
    unit = graph.cut(graph.op("Mul", values, graph.op("Div", graph.const(float(known["unit"])), root)))
    if (fourier := known["fourier"]) is not None:
        cosines = fourier["cosines"]
        turned = graph.op("MatMul", unit, graph.const(fourier["frequencies"]))
        turns = graph.op("Add", turned, graph.const(fourier["phases"]))
        steps = graph.cast(graph.op("Mul", turns, graph.const(len(cosines) / fourier["period"])), _INT64)
        place = graph.op("Mod", steps, graph.const(len(cosines), "i8"))
        unit = graph.op("Concat", unit, graph.op("Gather", graph.const(cosines), place), axis=1)
    rows = graph.op("Sub", unit, graph.const(known["centre"]))
    if known["stretch"] is not None:
        rows = graph.op("MatMul", rows, graph.const(known["stretch"]))
    if known["radius"] is not None:
        squared = graph.rows("ReduceSum", graph.op("Mul", rows, rows))
        shorter = graph.op("Sub", graph.const(known["radius"] ** 2), squared)
        rest = graph.op("Round", graph.op("Sqrt", graph.op("Max", shorter, graph.const(0.0))))
        rows = graph.op("Concat", rows, rest, axis=1)
    single = graph.cast(rows, _FLOAT)
    largest = graph.op("Max", graph.largest(single), graph.const(1.0, "f4"))
    scaled = graph.op("Mul", graph.op("Div", single, largest), graph.const(float(LEVELS), "f4"))
    return graph.cast(graph.op("Round", scaled), _DOUBLE)


def _scores(graph: _Graph, mapped: str, known: dict[str, Any]) -> str:
    """The scores of a linear model (`core/training.py`)."""
    root = graph.root(mapped)
    last = graph.op("Round", graph.op("Mul", root, graph.const(known["intercept"])))
    rows = graph.op("Concat", mapped, graph.op("Max", last, graph.const(1.0)), axis=1)
    scale = graph.op("Div", graph.const(known["unit"]), graph.root(rows))
    return graph.op("Mul", graph.op("MatMul", rows, graph.const(known["whole"])), scale)


def _softmax(graph: _Graph, mapped: str, known: dict[str, Any]) -> str:
    """The probabilities of a softmax model, by its table."""
    scores = _scores(graph, mapped, known)
    behind = graph.op("Sub", graph.rows("ReduceMax", scores), scores)
    steps = graph.op("Floor", graph.op("Mul", behind, graph.const(known["step"])))
    place = graph.cast(graph.op("Min", steps, graph.const(len(known["table"]) - 1.0)), _INT64)
    return _shares(graph, graph.op("Gather", graph.const(known["table"]), place))


def _averaged(graph: _Graph, values: str, known: dict[str, Any]) -> str:
    """The average over public rows nearby (`models/rules.py`)."""
    root = graph.op("Max", graph.root(values), graph.const(1.0))
    scale = graph.op("Div", graph.const(known["kappa"]), graph.op("Mul", root, graph.const(known["unit"])))
    dots = graph.op("MatMul", values, graph.const(np.transpose(known["rows"])))
    kappa = graph.op("Mul", graph.cast(dots, _FLOAT), graph.cast(scale, _FLOAT))
    near = graph.cast(graph.op("GreaterOrEqual", kappa, graph.const(known["near"], "f4")), _FLOAT)
    whole = graph.cut(graph.op("Mul", kappa, near))
    total = graph.op("Max", graph.rows("ReduceSum", whole), graph.const(1.0))
    sums = graph.op("MatMul", whole, graph.const(known["scores"]))
    found = graph.op("Mul", sums, graph.op("Div", graph.const(known["size"]), total))
    return graph.op("Add", graph.const(known["mean"]), found)


def _shares(graph: _Graph, positive: str, result: str = "") -> str:
    """Each row divided by its sum."""
    return graph.op("Div", positive, graph.rows("ReduceSum", positive), result=result)
