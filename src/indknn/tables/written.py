"""Reads and writes schemas as JSON, and as YAML with `pip install 'indknn[tables]'`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from indknn.errors import IndKNNError, InvalidInputError
from indknn.tables.categorical import Category, Ordered, YesNo
from indknn.tables.column import Column, Ignored
from indknn.tables.numeric import Date, Number
from indknn.tables.schema import Schema
from indknn.tables.texts import Text

KINDS: Final[dict[str, type[Column]]] = {
    kind.kind: kind for kind in (Number, Category, Ordered, YesNo, Date, Text, Ignored)
}
_YAML = {".yaml", ".yml"}
VERSION = 1
"""The version of the encoding. It must change whenever the vectors of a schema change, because stores keep vectors."""
_TOP = {"version", "label", "owner", "record_id", "blanks", "columns"}


def read_schema(source: Schema | Mapping[str, Any] | str | Path) -> Schema:
    """A schema from a file, or from the dict that such a file holds. A `Schema` is returned unchanged."""
    if isinstance(source, Schema):
        return source
    if isinstance(source, Mapping):
        return from_plain(source)
    path = Path(source)
    if not path.is_file():
        raise InvalidInputError(f"schema: {path} does not exist")
    try:
        return from_plain(_parse(path.read_text(encoding="utf-8"), path))
    except IndKNNError as error:
        raise InvalidInputError(f"{path}: {error}") from None


def _parse(text: str, path: Path) -> Any:
    if path.suffix not in _YAML:
        try:
            return json.loads(text)
        except ValueError as error:
            raise InvalidInputError(f"not readable as JSON ({error}); a YAML file must end in .yaml") from None
    yaml = _yaml()
    try:
        # Every value stays text. Otherwise YAML would read the country code NO as false.
        return yaml.load(text, yaml.BaseLoader)
    except yaml.YAMLError as error:
        raise InvalidInputError(f"not readable as YAML ({' '.join(str(error).split())})") from None


def from_plain(plain: Mapping[str, Any]) -> Schema:
    """A schema from dicts, lists, texts and numbers.

    >>> from_plain({"columns": {"age": {"kind": "number", "bounds": [0, "100"]}}}).used["age"].bounds
    (0, 100)
    """
    if not isinstance(plain, Mapping) or not isinstance(plain.get("columns"), Mapping):
        raise InvalidInputError("a schema must have 'columns', by name")
    _refuse_unknown("the schema", plain, _TOP)
    if str(plain.get("version", VERSION)) != str(VERSION):
        raise InvalidInputError(f"version must be {VERSION}, got {plain['version']!r}: made by a newer indknn?")
    label = plain.get("label") or {}
    if not isinstance(label, Mapping):
        label = {"column": label}
    _refuse_unknown("label", label, {"column", "classes"})
    roles = {name: _name(plain.get(name), name) for name in ("owner", "record_id")}
    return Schema(
        {str(name): _column(str(name), about) for name, about in plain["columns"].items()},
        label=_name(label.get("column"), "label"),
        classes=_classes(label.get("classes", ())),
        blanks=_texts(plain.get("blanks", ("",)), "blanks"),
        **roles,
    )


def to_plain(schema: Schema) -> dict[str, Any]:
    """A schema as dicts, lists, texts and numbers, for `from_plain`. Default values are left out."""
    plain: dict[str, Any] = {"version": VERSION}
    if schema.label is not None:
        plain["label"] = {"column": schema.label, **({"classes": list(schema.classes)} if schema.classes else {})}
    plain |= {name: value for name in ("owner", "record_id") if (value := getattr(schema, name)) is not None}
    if schema.blanks != ("",):
        plain["blanks"] = list(schema.blanks)
    plain["columns"] = {name: _about(column) for name, column in schema.columns.items()}
    return plain


def schema_text(schema: Schema, *, as_yaml: bool, notes: tuple[str, ...] = ()) -> str:
    """The schema as JSON or YAML. In YAML, notes become comments."""
    plain = to_plain(schema)
    if not as_yaml:
        return json.dumps(plain, indent=2, ensure_ascii=False) + "\n"
    body: str = _yaml().safe_dump(plain, sort_keys=False, default_flow_style=None, width=110, allow_unicode=True)
    return "".join(f"# {note}\n" for note in notes) + body


def is_yaml(path: Path) -> bool:
    """Whether a file of this name holds YAML."""
    return path.suffix in _YAML


def _about(column: Column) -> dict[str, Any]:
    about: dict[str, Any] = {"kind": column.kind}
    for one in fields(column):
        value = getattr(column, one.name)
        if value != one.default:
            about[one.name] = list(value) if isinstance(value, tuple) else value
    return about


def _column(name: str, about: Any) -> Column:
    if isinstance(about, str):
        about = {"kind": about}
    kind = about.get("kind") if isinstance(about, Mapping) else None
    if kind not in KINDS:
        raise InvalidInputError(f"column {name!r}: kind must be one of {', '.join(KINDS)}, got {kind!r}")
    made = KINDS[kind]
    known = {one.name for one in fields(made)}
    _refuse_unknown(f"column {name!r}", about, known | {"kind"})
    try:
        return made(**{key: _value(key, value) for key, value in about.items() if key != "kind"})
    except (InvalidInputError, TypeError) as error:
        raise InvalidInputError(f"column {name!r}: {error}") from None


def _value(key: str, value: Any) -> Any:
    if key in {"values", "yes", "no"} and isinstance(value, list):
        return tuple(str(one) for one in value)  # JSON may have numbers there
    return tuple(value) if isinstance(value, list) else value


def _refuse_unknown(where: str, given: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(str(key) for key in given if key not in known)
    if unknown:
        raise InvalidInputError(f"{where} must have only {', '.join(sorted(known))}, got {unknown[0]!r}")


def _name(value: Any, what: str) -> str | None:
    if value is not None and (not isinstance(value, str) or not value):
        raise InvalidInputError(f"{what} must be the name of a column, got {value!r}")
    return value


def _texts(values: Any, what: str) -> tuple[str, ...]:
    if isinstance(values, str) or not all(isinstance(value, str) for value in values):
        raise InvalidInputError(f"{what} must be a list of texts, got {values!r}")
    return tuple(values)


def _classes(values: Any) -> tuple[Any, ...]:
    """Labels. If all are whole numbers, they become numbers, as with `indknn init --classes`."""
    if isinstance(values, str) or not isinstance(values, list | tuple):
        raise InvalidInputError(f"classes must be a list of labels, got {values!r}")
    texts = [str(value) for value in values]
    whole = all(text.lstrip("-").isdigit() for text in texts)
    return tuple(int(text) for text in texts) if whole else tuple(texts)


def _yaml() -> Any:
    try:
        import yaml  # noqa: PLC0415
    except ModuleNotFoundError:
        raise IndKNNError("YAML needs pyyaml: pip install 'indknn[tables]'; or write the schema as JSON") from None
    return yaml
