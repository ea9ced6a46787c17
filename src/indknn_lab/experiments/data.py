"""Units of work with their results, and the data of one experiment: private records, query sets, nearest records.

The name of a unit contains a digest of everything that could change the result.

Neighbours are computed once and used for many settings. The product's own index finds them at the lowest threshold
asked for so far. Each takes 8 bytes. For a higher threshold, the kept neighbours are only filtered.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from math import inf
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from indknn.core.kernels import Kernel, make_kernel
from indknn.core.quantise import quantise
from indknn.errors import InvalidInputError
from indknn.records.indexes import make_index
from indknn.types import GRID, FloatArray, IntArray, KernelName, Selection, Vectors, tau_on_grid
from indknn_lab.baselines.knn import nearest, similarities
from indknn_lab.datasets import load_features

Result: TypeAlias = dict[str, Any]
Part: TypeAlias = Literal["figures", "streams", "change", "drift"]

VERSION = 1
"""Part of every digest. Increase it when the meaning of a result changes. Then old results are computed again."""


@dataclass(frozen=True)
class Effort:
    """How thorough a run is: the numbers of test sets and of runs per validation score, and the size of the grids."""

    sets: int = 5
    repeats: int = 2
    quick: bool = False


@dataclass(frozen=True)
class Unit:
    """One measurement. Everything that could change its result is a field.

    `kind` and `method` name a class in `methods.METHODS`. `digest` is the digest of the feature file. The path of the
    file is not part of the unit.
    """

    kind: str
    data: str
    digest: str
    T: int
    effort: Effort
    epsilon: float | None = None
    delta: float = 1e-5
    records: int | None = None
    copies: int = 1
    kernel: Literal["cosine", "rbf"] = "cosine"
    bandwidth: float | None = None
    weights: Literal["kernel", "equal"] = "kernel"
    noise: Literal["by K", "fixed"] = "by K"
    sigma1: float = 1.0
    """σ1 as a multiple of the paper's sqrt(T/6B)."""
    reuse: bool = False
    tables: int | None = None
    bits: int = 8
    sensitivity: Literal["sqrt2", "one"] = "sqrt2"
    method: str = ""

    @property
    def config(self) -> dict[str, Any]:
        """All fields as plain values."""
        return {**asdict(self), "version": VERSION}

    @cached_property
    def name(self) -> str:
        """The name of the result file, without its suffix."""
        return f"{self.kind}-{self.data}-{_digest(self.config)}"

    @property
    def promise(self) -> tuple[float, float]:
        """(epsilon, delta). epsilon is infinite for a method without privacy."""
        return inf if self.epsilon is None else self.epsilon, self.delta


@dataclass(frozen=True)
class Trial(Unit):
    """One run over a stream of queries, with one seed.

    `code` is a digest of the product's behaviour (`methods.endless`). If that changes, the units change too. So results
    of an older version are never used for this one. For methods that do not use the product, `code` is empty.
    """

    part: Part = "figures"
    seed: int = 0
    code: str = ""

    @property
    def tuned_on(self) -> Part:
        """The part on which this one is tuned. A few records that come and go make no difference to tuning."""
        return "streams" if self.part == "streams" else "figures"


class Results:
    """The units that are done. A folder holds one JSON file per unit.

    A file counts if it can be parsed, is about this unit, and has the right checksum. Any other file (incomplete,
    edited, or of an older version) is ignored, and the unit is done again.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.failures: dict[Unit, str] = {}
        """What went wrong in this run, by unit."""

    def get(self, unit: Unit) -> Result | None:
        """The result of this unit, or None if it has to be done."""
        try:
            stored = json.loads(self._path(unit).read_text(encoding="utf-8"))
            result: Result = stored["result"]
            same = stored["config"] == json.loads(json.dumps(unit.config))
            return result if same and stored["checksum"] == _digest(result) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, unit: Unit, result: Result, seconds: float, about: dict[str, Any] | None = None) -> None:
        """Keep a result, how long it took, and `about`: when, where and on which code it was made."""
        stored = {"config": unit.config, "seconds": round(seconds, 2), "about": about or {}}
        write_json(self._path(unit), {**stored, "checksum": _digest(result), "result": result})

    def about(self, units: Iterable[Unit]) -> dict[str, Any]:
        """How long these units took, their dates, machines and commits, the most memory of a process, and the load of
        the machine while times were measured."""
        seconds, found = 0.0, []
        for unit in units:
            with suppress(OSError, ValueError, KeyError, TypeError):
                stored = json.loads(self._path(unit).read_text(encoding="utf-8"))
                seconds += float(stored["seconds"])
                found.append(stored["about"])
        said: dict[str, Any] = {
            key: sorted({about[key] for about in found if about.get(key)})
            for key in ("date", "version", "commit", "machine")
        }
        most = {key: max((about.get(key, 0) for about in found), default=0) for key in ("memory_mb", "load")}
        return {**said, **most, "seconds": round(seconds, 1)}

    def discard(self, unit: Unit) -> None:
        """Delete a result, if there is one."""
        self._path(unit).unlink(missing_ok=True)

    def __getitem__(self, unit: Unit) -> Result:
        result = self.get(unit)
        if result is None:
            raise KeyError(unit.name)
        return result

    def _path(self, unit: Unit) -> Path:
        return self.folder / f"{unit.name}.json"


def write_json(path: Path, value: Any) -> None:
    """Write to a temporary file, then move it into place. A reader sees either the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    beside.replace(path)


def _digest(values: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=8).hexdigest()


def seed_for(*words: object) -> int:
    """A seed made from words. Every part of an experiment has its own noise, which is the same in every run.

    >>> seed_for("noise", 1) == seed_for("noise", 1), seed_for("noise", 1) == seed_for("noise", 2)
    (True, False)
    """
    return int.from_bytes(hashlib.blake2b(repr(words).encode(), digest_size=6).digest(), "big")


TAU_GRID = tuple(round(0.05 * i, 2) for i in range(1, 20))
"""The thresholds that the paper tries first: .05, .1, ..., .95."""

_MARGIN = 0.05  # scan with a slightly lower threshold than asked, because the search often goes lower next
_LOWEST = 0.01
_BLOCK = 64  # queries at a time, so that their neighbours fit into memory


class Near(NamedTuple):
    """The records near a query, with kernel values on the grid."""

    owners: IntArray
    labels: IntArray
    kappa: IntArray


@dataclass(frozen=True, eq=False)
class Data:
    """Private records and public queries in the form that a store uses, with labels 0, 1, ..."""

    private: Vectors
    labels: IntArray
    queries: Vectors
    truth: IntArray
    n_classes: int
    X: npt.NDArray[np.float32]
    Q: npt.NDArray[np.float32]

    @classmethod
    def of(
        cls, X: npt.NDArray[np.float32], labels: IntArray, Q: npt.NDArray[np.float32], truth: IntArray, c: int
    ) -> Data:
        """Make the data from raw features and labels."""
        return cls(quantise(X), labels, quantise(Q), truth, c, X, Q)


@lru_cache(maxsize=2)
def load(path: Path, records: int | None) -> Data:
    """The data of a feature file. With `records`, only the first so many private records are used."""
    raw = load_features(path)
    classes, codes = np.unique(np.concatenate([raw.y_train, raw.y_test]), return_inverse=True)
    labels, truth = np.split(codes.astype(np.int64), [len(raw.y_train)])
    return Data.of(raw.X_train[:records], labels[:records], raw.X_test, truth, len(classes))


@dataclass(frozen=True)
class QuerySets:
    """Row numbers of the validation queries, which methods are tuned on, and of the test queries."""

    validation: IntArray
    tests: tuple[IntArray, ...]


def query_sets(name: str, available: int, T: int, sets: int) -> QuerySets:
    """A validation set of T queries and `sets` test sets of T, the same for every method.

    If there are too few rows for disjoint test sets, each is drawn independently from all rows outside the validation
    set.
    """
    if available < 2 * T:
        raise InvalidInputError(f"{name} has {available} queries: too few for validation and test sets of {T}")
    rng = np.random.default_rng(seed_for("queries", name, T))
    order = rng.permutation(available).astype(np.int64)
    validation, rest = order[:T], order[T:]
    enough = sets * T <= len(rest)
    tests = (rest[i * T : (i + 1) * T] if enough else rng.permutation(rest)[:T] for i in range(sets))
    return QuerySets(validation, tuple(tests))


class KernelNeighbours:
    """The records within a threshold of each query, for one kernel and one index."""

    def __init__(
        self,
        data: Data,
        kernel: KernelName = "cosine",
        index: str = "exact",
        bandwidth: float | None = None,
        **options: Any,
    ):
        self.data = data
        self.kernel = make_kernel(kernel, bandwidth)
        self._index = make_index(index, self.kernel, data.private.values.shape[1], **options)
        self._index.add(data.private)
        self._low = GRID + 1
        self._found: dict[int, tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]] = {}
        self._plain: dict[bytes, FloatArray] = {}

    def neighbours(self, rows: IntArray, tau: float) -> list[Near]:
        """For each of these queries, the records with κ >= tau. Record i belongs to owner i."""
        self._scan(rows, tau)
        least, found = tau_on_grid(tau), []
        for slots, kappa in (self._found[row] for row in rows.tolist()):
            keep = kappa >= least
            owners = slots[keep].astype(np.int64)
            found.append(Near(owners, self.data.labels[owners], kappa[keep].astype(np.int64)))
        return found

    def plain_accuracy(self, rows: IntArray) -> FloatArray:
        """The accuracy of the vote without noise or budgets, for every threshold of `TAU_GRID`."""
        key = rows.tobytes()
        if key not in self._plain:
            near = self._search(rows, tau_on_grid(TAU_GRID[0]))
            self._plain[key] = np.mean([self._plain_right(*pair) for pair in near], axis=0)
        return self._plain[key]

    def plain_tau(self, rows: IntArray) -> float:
        """τ*: the threshold at which the vote without noise or budgets is most accurate."""
        return TAU_GRID[int(np.argmax(self.plain_accuracy(rows)))]

    def _plain_right(self, row: int, near: Selection) -> npt.NDArray[np.bool_]:
        """Whether the vote is right, for all τ of the grid at once. Neighbours are sorted into steps of τ, and summed
        from the highest step down."""
        steps, c = len(TAU_GRID), self.data.n_classes
        edges = np.array([tau_on_grid(tau) for tau in TAU_GRID])
        step = np.searchsorted(edges, near.kappa, side="right") - 1
        votes = np.bincount(step * c + self.data.labels[near.slots], weights=near.kappa, minlength=steps * c)
        from_the_top = votes.reshape(steps, c)[::-1].cumsum(axis=0)[::-1]
        right: npt.NDArray[np.bool_] = from_the_top.argmax(axis=1) == self.data.truth[row]
        return right

    def _search(self, rows: IntArray, least: int) -> Iterator[tuple[int, Selection]]:
        for start in range(0, len(rows), _BLOCK):
            block = rows[start : start + _BLOCK]
            yield from zip(block.tolist(), self._index.search(self.data.queries[block], least), strict=True)

    def _scan(self, rows: IntArray, tau: float) -> None:
        """Find and keep the neighbours of these queries. If the threshold is the lowest so far, all are found again."""
        if tau_on_grid(tau) < self._low:
            self._low = tau_on_grid(max(tau - _MARGIN, min(tau, _LOWEST)))
            self._found.clear()
        new = np.array([row for row in rows.tolist() if row not in self._found], dtype=np.int64)
        for row, near in self._search(new, self._low):
            self._found[row] = near.slots.astype(np.int32), near.kappa.astype(np.int32)


def earlier_queries(data: Data, rows: IntArray, kernel: Kernel, tau: float) -> list[Selection]:
    """For each query, the *earlier* queries of the same stream within τ. With reuse, their answers also vote."""
    vectors = data.queries[rows]
    pool = make_index("exact", kernel, vectors.values.shape[1])
    pool.add(vectors)
    found = []
    for t, near in enumerate(pool.search(vectors, tau_on_grid(tau))):
        before = near.slots < t
        found.append(Selection(near.slots[before], near.kappa[before]))
    return found


class NearestLabels:
    """The labels of the records nearest to each query, nearest first. Private-kNN needs nothing else."""

    def __init__(self, data: Data, length: int):
        self.data = data
        self.length = min(length, len(data.labels))
        self.votes: dict[tuple[object, ...], IntArray] = {}  # votes of samples, kept for `methods.queries`
        self._labels: dict[int, npt.NDArray[np.uint8]] = {}
        if data.n_classes > 256:
            raise InvalidInputError(f"at most 256 classes can be compared, got {data.n_classes}")

    def labels(self, rows: IntArray) -> Sequence[npt.NDArray[np.uint8]]:
        """The labels for each of these queries."""
        new = np.array([row for row in rows.tolist() if row not in self._labels], dtype=np.int64)
        for row, similarity in zip(new.tolist(), similarities(self.data.queries[new], self.data.private), strict=True):
            self._labels[row] = self.data.labels[nearest(similarity, self.length)].astype(np.uint8)
        return [self._labels[row] for row in rows.tolist()]
