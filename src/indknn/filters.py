"""Algorithm 1 of the paper for mechanisms of your own: a filter that gives every person a privacy budget.

A mechanism asks `admit` before each step, with what the step would cost each person. Those who can pay take part and
are charged, at once and for ever. The others are left out. Then the answers of all steps together are
(epsilon, delta)-DP for everybody, however the steps were chosen (Feldman & Zrnic 2021; Koskela et al. 2023).

Daily sums of steps, where each person pays for their own value and not for the largest possible one:

    from indknn.filters import IndividualFilter

    people = IndividualFilter(epsilon=1.0, delta=1e-5)
    for names, steps in days:                              # steps between 0 and 1
        print(people.noisy_sum(names, steps, sigma=100.0))
    print(people.epsilon_spent(["ann"]))

and with a mechanism of your own, here one that is (alpha, alpha·rho)-RDP for each person:

    takes_part = people.admit(names, rho)                  # charged before anything is computed
    answer = my_mechanism(rows[takes_part])

Three rules make the promise true, and only the caller can keep them:
- The cost of a person depends on that person's own rows, on public facts and on earlier answers, and on nobody else.
- Nothing leaves but what the mechanism returns: not who was admitted, and not how many.
- A step is at least as private for each person as the cost says.

Costs are counted in whole units of 2^-50, rounded up, in the ledger that indknn's own predictions use.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from indknn.core import accounting
from indknn.core.accounting import MAX_UNITS, UNIT
from indknn.core.inputs import as_owners
from indknn.core.mechanism import ceil_sqrt, charge_units
from indknn.core.noise import noise_from
from indknn.errors import InvalidInputError, PrivacyError, StoreError
from indknn.ledger.memory import MemoryLedger, Tombstone
from indknn.types import GRID, Accountant, BoolArray, FloatArray, IntArray

_LARGEST = 2.0**30  # of noise, so that it fits into 63 bits on the grid
_LARGEST_VALUE, _MOST_ROWS = 2.0**10, 2**30  # so that every sum fits too; neither bound depends on the other


class IndividualFilter:
    """A budget for every person, for any mechanisms.

    `accountant` says what a cost is: with "gdp" it is μ²/2 of a step that is μ-GDP for the person, with "rdp" it is ρ
    of a step that is (α, αρ)-RDP for all α > 1. For a Gaussian step both are |what the person adds|²/(2·sigma²). With
    an `order` it is the step's Rényi divergence of that order, as in the paper's Algorithm 1. For a Gaussian step that
    is `order` times as much.

    With a `path`, what was spent is kept in that file, and charges are on disk before `admit` returns.
    Unlike a store, it has no head or witness: an old copy that is put back silently refunds what was spent since.

    >>> people = IndividualFilter(epsilon=1.0, delta=1e-5, accountant="rdp")
    >>> round(people.budget, 4)
    0.0306
    >>> people.admit(["ann", "bob"], [0.03, 0.01]).tolist()
    [True, True]
    >>> people.admit(["ann", "bob"], [0.03, 0.01]).tolist()
    [False, True]
    >>> round(float(people.epsilon_spent(["ann"])[0]), 2)
    0.99
    """

    def __init__(
        self,
        epsilon: float,
        delta: float,
        *,
        accountant: Accountant = "gdp",
        order: float | None = None,
        path: str | Path | None = None,
        random_state: int | None = None,
    ):
        self.delta, self.accountant, self.order = delta, accountant, order
        if order is None:
            units = accounting.to_units(accounting.budget(epsilon, delta, accountant))
        else:
            units = accounting.to_units(accounting.budget_at_order(epsilon, delta, order))
        self.budget = float(accounting.from_units(units))
        self._noise = noise_from(random_state)
        if path is not None and not self._noise.secure:
            raise PrivacyError("a file is for people's data and refuses seeded noise; random_state must be None")
        self._process = os.getpid()  # a forked process has a copy of the ledger, and would spend everything again
        self._file = None if path is None else _File(Path(path), (epsilon, delta, accountant, order))
        self._ledger = MemoryLedger(units, key=None if self._file is None else self._file.key)
        if self._file is not None:
            self._file.fill(self._ledger)

    def __getstate__(self) -> dict[str, Any]:
        if self._noise.secure:
            raise PrivacyError("a filter cannot be copied or pickled: the copy would spend everybody's budget again")
        return self.__dict__

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()

    def admit(self, people: Sequence[Any], costs: npt.ArrayLike) -> BoolArray:
        """Who can pay for the next step. They have paid when this returns. Each person may be given once.

        What it returns decides who takes part. It is private: use it inside of a mechanism only.
        """
        names = _distinct(people)
        return self._admit(names, _units(costs, len(names)))

    def noisy_sum(self, people: Sequence[Any], values: npt.ArrayLike, sigma: float) -> FloatArray:
        """The sum of the values of everybody who can pay, plus exact Gaussian noise of scale `sigma` on each entry.

        There is one value, or one row of values, for each entry of `people`. A person with several rows pays for their
        sum. Nobody at all is a sum like any other, with the same noise. Scale values so that none is above 1,024.

        >>> people = IndividualFilter(epsilon=8.0, delta=1e-5, random_state=0)
        >>> total = people.noisy_sum(["ann", "bob", "ann"], [1.0, 0.0, 0.5], sigma=2.0)
        >>> people.spent(["ann", "bob"]).round(4).tolist()
        [0.2813, 0.0]
        """
        rows = np.asarray(values, dtype=np.float64)
        rows = rows[:, None] if rows.ndim == 1 else rows.reshape(len(rows), prod(rows.shape[1:]))
        if len(rows) != len(people):
            raise InvalidInputError(f"there are {len(people)} people and {len(rows)} rows of values")
        if not (np.abs(rows) <= _LARGEST_VALUE).all():
            raise InvalidInputError(f"values must be numbers, from -{_LARGEST_VALUE:g} to {_LARGEST_VALUE:g}")
        if len(rows) > _MOST_ROWS:
            raise InvalidInputError(f"there may be {_MOST_ROWS:,} rows of values at most, got {len(rows):,}")
        if not 0.0 < sigma <= _LARGEST:
            raise InvalidInputError(f"sigma must be above 0 and at most {_LARGEST:g}, got {sigma!r}")
        names = as_owners(people, length=len(rows))
        distinct = list(dict.fromkeys(names))
        place = {name: i for i, name in enumerate(distinct)}
        sums = np.zeros((len(distinct), rows.shape[1]), dtype=np.int64)
        np.add.at(sums, [place[name] for name in names], np.rint(rows * GRID).astype(np.int64))
        num, den = float(sigma).as_integer_ratio()
        scale = ceil_sqrt((num * GRID) ** 2, den**2)
        squared = np.square(sums.astype(np.float64)).sum(axis=1)
        if self.order is not None:  # the Rényi divergence of this order is order·|what the person adds|²/(2·sigma²)
            squared *= self.order
        takes_part = self._admit(distinct, charge_units(squared, scale))
        result: FloatArray = (sums[takes_part].sum(axis=0) + self._noise.draw(scale, rows.shape[1])) / GRID
        return result

    def spent(self, people: Sequence[Any]) -> FloatArray:
        """What each has spent of `budget`, also those who were forgotten."""
        return accounting.from_units(self._ledger.spent(as_owners(people, length=len(people)), None))

    def epsilon_spent(self, people: Sequence[Any]) -> FloatArray:
        """The epsilon, at this filter's delta, of what each has spent."""
        return np.array([self._epsilon(rho) for rho in self.spent(people).tolist()])

    def forget(self, people: Sequence[Any]) -> None:
        """Remove the names. What was spent is kept under a keyed hash, so that coming back refunds nothing."""
        names = as_owners(people, length=len(people))
        with self._ledger.lock:
            slots = self._ledger.slots_of(names)
            if self._file is not None:
                self._file.forget([self._ledger.digest(name) for name in names])
            self._ledger.retire(np.unique(slots[slots >= 0]))

    def _admit(self, names: Sequence[str], units: IntArray) -> BoolArray:
        if os.getpid() != self._process and self._noise.secure:
            raise PrivacyError("this filter belongs to another process; a forked one would spend its budgets again")
        with self._ledger.lock:
            slots = self._ledger.enrol(names)
            able: BoolArray = units <= self._ledger.remaining(slots, None)
            charged = units * able
            if self._file is not None:
                after = (self._ledger.spent_by(slots, None) + charged).tolist()
                self._file.write([(self._ledger.digest(n), n, u) for n, u in zip(names, after, strict=True)])
            self._ledger.charge(slots, charged, None)
            return able

    def _epsilon(self, rho: float) -> float:
        if self.order is None:
            return accounting.epsilon(rho, self.delta, self.accountant)
        return accounting.epsilon_at_order(rho, self.delta, self.order)


def _distinct(people: Sequence[Any]) -> Sequence[str]:
    names = as_owners(people, length=len(people))
    if len(set(names)) != len(names):
        raise InvalidInputError("a person is given twice: add up what the step costs them")
    return names


def _units(costs: npt.ArrayLike, n: int) -> IntArray:
    """Costs in units of the ledger, rounded up."""
    given = np.broadcast_to(np.asarray(costs, dtype=np.float64), (n,))
    if not (given >= 0.0).all():
        raise InvalidInputError(f"costs must be numbers, at least 0, got {given[~(given >= 0.0)][0]!r}")
    return np.ceil(np.minimum(given * UNIT, float(MAX_UNITS))).astype(np.int64)  # a float times 2^50 is exact


class _File:
    """What was spent, in one SQLite file that one process uses at a time."""

    def __init__(self, path: Path, terms: tuple[Any, ...]):
        with suppress(OSError):  # it is there, or SQLite says what is wrong
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))  # it holds names
        self._db = sqlite3.connect(path, timeout=0.0, isolation_level=None, check_same_thread=False)
        try:
            for line in (
                "locking_mode = EXCLUSIVE",
                "synchronous = FULL",
                "secure_delete = ON",
            ):  # no name stays behind
                self._db.execute(f"PRAGMA {line}")
            self._db.execute("BEGIN EXCLUSIVE")
            self._db.execute("CREATE TABLE IF NOT EXISTS terms (id INTEGER PRIMARY KEY, terms TEXT, key BLOB)")
            self._db.execute("CREATE TABLE IF NOT EXISTS people (digest BLOB PRIMARY KEY, name TEXT, units INTEGER)")
            self._db.execute("INSERT OR IGNORE INTO terms VALUES (1, ?, ?)", (repr(terms), secrets.token_bytes(32)))
            kept, key = self._db.execute("SELECT terms, key FROM terms").fetchone()
            self.key: bytes = key
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._db.close()
            raise StoreError(f"{path} cannot be used as the file of a filter: {error}") from None
        if kept != repr(terms):
            self._db.close()
            raise InvalidInputError(f"{path} was made with (epsilon, delta, accountant, order) = {kept}, not {terms!r}")

    def fill(self, ledger: MemoryLedger) -> None:
        """Give the ledger everything that is written down."""
        rows = self._db.execute("SELECT digest, name, units FROM people ORDER BY rowid").fetchall()
        here = [(name, units) for _, name, units in rows if name is not None]
        graves = {digest: Tombstone({None: units}, 0) for digest, name, units in rows if name is None}
        units = np.array([units for _, units in here], dtype=np.int64)
        names = enumerate(name for name, _ in here)
        ledger.restore(names, {None: units}, np.zeros(len(here), dtype=np.int64), graves, len(here))

    def write(self, rows: Sequence[tuple[bytes, str, int]]) -> None:
        """Write names and what they have spent, all or none."""
        self._db.execute("BEGIN")
        try:
            self._db.executemany("INSERT OR REPLACE INTO people VALUES (?, ?, ?)", rows)
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise

    def forget(self, digests: Sequence[bytes]) -> None:
        """Remove names, and keep what was spent."""
        self._db.execute("BEGIN")
        self._db.executemany("UPDATE people SET name = NULL WHERE digest = ?", [(digest,) for digest in digests])
        self._db.execute("COMMIT")

    def close(self) -> None:
        self._db.close()
