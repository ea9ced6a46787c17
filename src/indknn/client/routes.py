"""A method for every route of a server, for both clients."""

from __future__ import annotations

import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, TypedDict, Unpack
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from indknn.client.exchange import (
    HEADER_LENGTH,
    LONGEST_WAIT,
    PATIENT,
    ApiError,
    Call,
    ConnectionLostError,
    Flow,
    Model,
    checked_id,
    exchange,
    json_of,
    outputs_of,
    queries_of,
    records_of,
)
from indknn.core.inputs import as_owner_list, as_record_numbers, refuse_unwritable
from indknn.errors import IndKNNError, InvalidInputError

Progress: TypeAlias = Callable[[int, int], None]
"""Called with how many rows are done and how many there are."""
_LABEL, _PROBABILITIES, _INTERVALS = "label", "probabilities", "intervals"


class Decided(TypedDict, total=False):
    """How labels follow from probabilities. Nothing: as they were released."""

    min_confidence: float | None
    class_weight: Any


class Routes(ABC):
    """The methods of both clients. With `AsyncClient` you must await what they return."""

    def __init__(self, address: str, model: str | None, retries: int):
        self._address, self._name, self._retries = address, model, retries
        self._known: Model | None = None

    @abstractmethod
    def _run(self, flow: Flow) -> Any: ...

    # Asking

    def predict(
        self, rows: Any, *, request_id: str | None = None, progress: Progress | None = None, **decision: Unpack[Decided]
    ) -> Any:
        """The label of each row, as an array. The same `request_id` with the same rows is charged once.

        The rows are a pandas, polars or Arrow frame, a dict of columns, a list of dicts, an array, or texts. Columns
        are found by name. If there are more rows than the server takes at once, they are sent in several requests,
        with the ids `request_id/0`, `request_id/1` and so on. After each, `progress(done, total)` is called.

        Labels that are less likely than `min_confidence` are left open: labels are texts then, and these are empty.
        `class_weight="balanced"` treats all labels as equally common. Both cost nothing.
        """
        return self._run(self._output(rows, _LABEL, request_id, progress, decision))

    def predict_proba(
        self, rows: Any, *, request_id: str | None = None, progress: Progress | None = None, **decision: Unpack[Decided]
    ) -> Any:
        """The probability of each class for each row, in the order of the model's classes.

        It costs the same as `predict`.
        """
        return self._run(self._output(rows, _PROBABILITIES, request_id, progress, decision))

    def predict_interval(
        self, rows: Any, coverage: float = 0.9, *, request_id: str | None = None, progress: Progress | None = None
    ) -> Any:
        """The two ends of an interval for each row, which holds the number in about this share of the cases.

        It costs the same as `predict`.
        """
        return self._run(self._output(rows, _INTERVALS, request_id, progress, {"coverage": coverage}))

    def predict_table(
        self, rows: Any, *, request_id: str | None = None, progress: Progress | None = None, **decision: Unpack[Decided]
    ) -> Any:
        """The answers as a dict of columns: `id`, the label under its name in the schema, and `p_CLASS` for each class.

        `id` is the record id of each row, or else its number. It costs the same as `predict`.
        """
        return self._run(self._answers(rows, request_id, progress, decision))

    def model(self) -> Any:
        """The public facts about the model."""
        return self._run(self._described())

    def schema(self) -> Any:
        """The public schema of tables. None if queries are vectors or texts."""
        return self._run(self._schema())

    # The server and its callers

    def session(self) -> Any:
        """Who you are, what you may do, and what is guaranteed."""
        return self._run(self._json("GET", "/v1/session"))

    def sign_in(self) -> Any:
        """Whether a key is needed, in `needs_key`."""
        return self._run(self._json("GET", "/v1/sign-in"))

    def server(self) -> Any:
        """The name and the version of the server."""
        return self._run(self._json("GET", "/v2"))

    def is_live(self) -> Any:
        """Whether the server is running."""
        return self._run(self._works("/v2/health/live"))

    def is_ready(self) -> Any:
        """Whether the server is ready to answer."""
        return self._run(self._works("/v2/health/ready"))

    def is_model_ready(self) -> Any:
        """Whether the model is ready to answer."""
        return self._run(self._works("/v2/models/{}/ready"))

    def signing_key(self) -> Any:
        """The public keys with which receipts and audit trails are checked."""
        return self._run(self._json("GET", "/v1/signing-key"))

    def openapi(self) -> Any:
        """What the server offers, as an OpenAPI document."""
        return self._run(self._json("GET", "/openapi.json"))

    # Records and people

    def add(
        self,
        features: Any,
        labels: Any = None,
        owners: Any = None,
        record_ids: Any = None,
        *,
        expires: Any = None,
        epsilons: Any = None,
        request_id: str | None = None,
        progress: Progress | None = None,
    ) -> Any:
        """Add records, all or none. The answer has their numbers in `ids`.

        `features` may be a table that also holds labels, owners, record ids and dates. owners="each-row" says that
        every row is a new person. `expires` are dates from which records take no part. `epsilons` are promises for the
        owners of single rows, smaller than the store's. The same `request_id` with the same records is done once. More
        records than the server takes at once are sent in several requests, each of which is done or not: call again
        with the same `request_id` after an error.
        """
        given = features, labels, owners, record_ids, expires, epsilons
        return self._run(self._added(given, request_id, progress))

    def remove(self, ids: Any = None, *, record_ids: Any = None, owners: Any = None) -> Any:
        """Remove records by the server's numbers, by your own record ids, or all of some owners, all or none."""
        body = {
            "ids": [] if ids is None else as_record_numbers(ids),
            "record_ids": [] if record_ids is None else as_owner_list(record_ids, what="record id"),
            "owners": [] if owners is None else as_owner_list(owners),
        }
        return self._run(self._json("DELETE", "/v1/records", body, repeatable=False))

    def owners(self, search: str, *, limit: int = 20) -> Any:
        """The people whose names contain a text, in `owners`. `more` says whether there are others."""
        return self._run(self._json("GET", f"/v1/owners?search={_segment(search)}&limit={_whole(limit)}"))

    def statement(self, owner: str | int, other_keys: Sequence[str] = ()) -> Any:
        """What a person has spent, rounded up. `other_keys` are their own keys of other stores of the same server."""
        headers = {"X-Other-Keys": ",".join(other_keys)} if other_keys else None
        return self._run(self._json("GET", _of_owner(owner), headers=headers))

    def lower(self, owner: str | int, epsilon: float) -> Any:
        """Promise a person a smaller epsilon from now on, which is never raised again. Returns a receipt."""
        return self._run(self._json("PATCH", _of_owner(owner), {"epsilon": epsilon}, repeatable=True))

    def forget(self, owner: str | int) -> Any:
        """Forget a person. Returns a receipt."""
        return self._run(self._json("DELETE", _of_owner(owner), repeatable=False))

    def holds(self) -> Any:
        """The people under a legal hold, in `owners`."""
        return self._run(self._json("GET", "/v1/holds"))

    def hold(self, owners: Any) -> Any:
        """Put people under a legal hold: their records take no part, and nothing erases them until it ends."""
        return self._run(self._json("POST", "/v1/holds", {"owners": as_owner_list(owners)}))

    def release_hold(self, owners: Any) -> Any:
        """End the hold of people. Returns the receipt of what is erased now."""
        return self._run(self._json("DELETE", "/v1/holds", {"owners": as_owner_list(owners)}, repeatable=False))

    def published_model(self, *, with_queries: bool = False) -> Any:
        """The shared model with its ε and δ, which may be published. `with_queries` allows it to hold queries."""
        return self._run(self._json("GET", f"/v1/model?with_queries={str(bool(with_queries)).lower()}"))

    def train(self) -> Any:
        """Begin to train the shared model now, or to train it again if there are enough newcomers."""
        return self._run(self._json("POST", "/v1/train", repeatable=False))

    def purge(self) -> Any:
        """Delete all answers and the shared model. Everybody who asks again can see it."""
        return self._run(self._json("POST", "/v1/purge", repeatable=False))

    # Keys

    def keys(self) -> Any:
        """All keys that were ever made, in `keys`, without their texts."""
        return self._run(self._json("GET", "/v1/keys"))

    def create_key(
        self,
        role: str,
        name: str,
        *,
        owner: str | None = None,
        rate: float | None = None,
        max_queries: int | None = None,
        epsilon: float | None = None,
    ) -> Any:
        """Make a key. Its text is in `key`, and is never shown again."""
        facts = {"owner": owner, "rate": rate, "max_queries": max_queries, "epsilon": epsilon}
        body = {"role": role, "name": name, **{key: value for key, value in facts.items() if value is not None}}
        return self._run(self._json("POST", "/v1/keys", body, repeatable=False))

    def rotate_key(self, key_id: str) -> Any:
        """Replace a key by a new one for the same holder. The text of the new one is in `key`."""
        return self._run(self._json("POST", f"/v1/keys/{_segment(key_id)}/rotate", repeatable=False))

    def revoke_key(self, key_id: str) -> Any:
        """Revoke a key. It is refused from now on."""
        return self._run(self._json("DELETE", f"/v1/keys/{_segment(key_id)}", repeatable=False))

    # Reports

    def analysts(self) -> Any:
        """What each analyst has asked and may still ask."""
        return self._run(self._json("GET", "/v1/analysts"))

    def status(self) -> Any:
        """How much people have spent."""
        return self._run(self._json("GET", "/v1/status"))

    def backup(self, name: str | None = None) -> Any:
        """Copy the store into the server's folder of backups, under this name or one with the time."""
        return self._run(self._json("POST", "/v1/backup", {"name": name}, repeatable=False))

    def verify(self) -> Any:
        """Check the whole store. `ok` says whether all is well, and `problems` what is not."""
        return self._run(self._json("POST", "/v1/verify"))

    def audit(self, after: int = 0, limit: int = 1000) -> Any:
        """The `entries` of the audit trail after a position. Pass `next` as `after` to get more."""
        return self._run(self._json("GET", f"/v1/audit?after={_whole(after)}&limit={_whole(limit)}"))

    def metrics(self) -> Any:
        """Counters for Prometheus, as text."""
        return self._run(self._text("/metrics"))

    # Flows

    def _output(self, rows: Any, output: str, *how: Any) -> Flow:
        _, _, found = yield from self._predicted(rows, [output], *how)
        return found[output]

    def _answers(self, rows: Any, *how: Any) -> Flow:
        known, _ = yield from self._fitted(lambda model: None)
        wanted = [_LABEL] if known.numeric else [_LABEL, _PROBABILITIES]
        model, queries, found = yield from self._predicted(rows, wanted, *how)
        label = _LABEL if model.schema is None or model.schema.label is None else model.schema.label
        columns = zip(model.classes, found[_PROBABILITIES].T, strict=True) if _PROBABILITIES in found else ()
        ids = range(len(queries)) if queries.ids is None else queries.ids
        return {"id": list(ids), label: found[_LABEL], **{f"p_{one}": column for one, column in columns}}

    def _predicted(
        self,
        rows: Any,
        outputs: list[str],
        request_id: str | None,
        progress: Progress | None,
        parameters: Mapping[str, Any],
    ) -> Flow:
        """The model, the queries, and the outputs by name. Everything is checked before the first request."""
        name = checked_id(str(uuid.uuid4()) if request_id is None else request_id)
        model, queries = yield from self._fitted(lambda model: queries_of(rows, model))
        wanted = [{"name": output, "parameters": {"binary_data": True}} for output in outputs]
        path, done = f"/v2/models/{_segment(model.name)}/infer", 0
        found: dict[str, list[npt.NDArray[Any]]] = {output: [] for output in outputs}
        try:
            for i, (end, asked, data) in enumerate(queries.pieces(model.max_batch, model.max_body)):
                one = name if end - done == len(queries) else f"{name}/{i}"
                head = json.dumps({"id": one, "outputs": wanted, "parameters": parameters, **asked}).encode()
                headers: dict[str, str] = {
                    HEADER_LENGTH: str(len(head)),
                    "Content-Type": "application/octet-stream",
                    "X-Request-Id": one,
                }
                call = Call("POST", path, head + data, headers, longest_wait=PATIENT if done else LONGEST_WAIT)
                answers = outputs_of((yield from self._exchange(call)), outputs)
                for output in outputs:
                    found[output].append(answers[output])
                done = end
                if progress is not None:
                    progress(done, len(queries))
        except IndKNNError as error:
            self._known = None  # the server may have changed
            raise _with_progress(error, "answered", done, len(queries), name) from None
        return model, queries, {output: np.concatenate(parts) for output, parts in found.items()}

    def _added(self, given: tuple[Any, ...], request_id: str | None, progress: Progress | None) -> Flow:
        name = checked_id(str(uuid.uuid4()) if request_id is None else request_id)
        model, (records, each_row) = yield from self._fitted(lambda model: records_of(model, *given))
        total, most, ids = len(records), model.max_records, []
        answer: dict[str, Any] = {}
        if each_row and total > most:
            raise InvalidInputError(f"owners='each-row' is for one request of at most {most} records, got {total}")
        done = 0
        try:
            for i, low in enumerate(range(0, max(total, 1), most)):
                body = {"records": records[low : low + most], **({"each_row": True} if each_row else {})}
                once: dict[str, str] = {"X-Request-Id": name if total <= most else f"{name}/{i}"}
                told = yield from self._json("POST", "/v1/records", body, once)
                ids += told["ids"]
                answer = _summed(answer, told)
                done = min(low + most, total)
                if progress is not None:
                    progress(done, total)
        except IndKNNError as error:
            self._known = None
            raise _with_progress(error, "added", done, total, name) from None
        return {**answer, "ids": ids}

    def _fitted(self, convert: Callable[[Model], Any]) -> Flow:
        """The model, and what it is to be sent. If that does not fit, the model may have changed, and is asked for."""
        if self._known is not None:
            with suppress(InvalidInputError):
                return self._known, convert(self._known)
        described = yield from self._described()
        try:
            self._known = model = Model.of(described)
        except (LookupError, TypeError):
            raise self._stranger() from None
        return model, convert(model)

    def _stranger(self) -> IndKNNError:
        return IndKNNError(f"{self._address} does not describe a model as an indknn server of this version does")

    def _described(self) -> Flow:
        name = yield from self._model_name()
        return (yield from self._json("GET", f"/v2/models/{_segment(name)}"))

    def _model_name(self) -> Flow:
        if self._name is None:
            try:
                self._name = (yield from self._json("GET", "/v1/session"))["model"]
            except (LookupError, TypeError):
                raise self._stranger() from None
        return self._name

    def _schema(self) -> Flow:
        return (yield from self._described())["parameters"].get("schema")

    def _works(self, path: str) -> Flow:
        try:
            if "{}" in path:
                path = path.format(_segment((yield from self._model_name())))
            yield from self._json("GET", path)
        except (ApiError, ConnectionLostError):
            return False
        return True

    def _text(self, path: str) -> Flow:
        return (yield from self._exchange(Call("GET", path))).text

    def _json(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        repeatable: bool = True,
    ) -> Flow:
        try:
            content = None if body is None else json.dumps(body, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise InvalidInputError(f"what was given cannot be sent as JSON: {error}") from None
        kind: dict[str, str] = {} if body is None else {"Content-Type": "application/json"}
        call = Call(method, path, content, {**kind, **(headers or {})}, repeatable)
        return json_of((yield from self._exchange(call)))

    def _exchange(self, call: Call) -> Flow:
        return (yield from exchange(call, self._address, self._retries))


def _with_progress(error: IndKNNError, what: str, done: int, total: int, name: str) -> IndKNNError:
    """The same error, which also says how much was done before it."""
    if done:
        again = f"with request_id={name!r} and the same rows they are not {what} again"
        error.args = (f"{error}; {done} of {total} rows were {what} before: {again}",)
    return error


def _summed(before: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    """The answer to several uploads: the newest counts, and the sum of what each has done."""
    if not before:
        return told
    sums = {name: before[name] + told[name] for name in ("added", "replaced", "unchanged", "already_here")}
    warnings = [*before["warnings"], *(one for one in told["warnings"] if one not in before["warnings"])]
    return {**told, **sums, "warnings": warnings, "repeated": before["repeated"] and told["repeated"]}


def _of_owner(owner: str | int) -> str:
    names = as_owner_list([owner])
    return f"/v1/owners/{_segment(names[0])}"


def _segment(text: str) -> str:
    """A text as one part of a path. Dots alone would mean another path."""
    refuse_unwritable("a name", 0 if text is None else text)
    return quote(text, safe="") if set(text) != {"."} else text.replace(".", "%2E")


def _whole(number: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int | np.integer):
        raise InvalidInputError(f"a whole number is needed, got {number!r}")
    return int(number)
