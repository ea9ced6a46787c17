"""Neighbouring histories and the privacy loss of a transcript.

A scenario is a script of events: somebody is added or forgotten, a query is asked, the shared model is trained. One
owner is the *target*. In the world where they are present their events happen, in the other they do not; everything
else is the same. The script may look at all that was released so far (`View`), so adversaries are adaptive.

The adversary knows everybody's records. They keep two *shadows*, shards of the product that hold only the others
and only the target, and feed them the released counts and sums. The shadows tell by how much the target shifts each
release, and from where. For a Gaussian release at scale s, shifted by Δ from b, the log-likelihood ratio is
((x - b)·Δ - |Δ|²/2)/s²; their sum over the transcript is the best possible score (Neyman & Pearson 1933).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from scipy.special import log_ndtr, logsumexp

from indknn.answering import predictor
from indknn.answering.transcript import Transcript, keys_of
from indknn.core.inputs import as_owner_list
from indknn.core.kernels import tau_on_grid
from indknn.core.mechanism import MIN_K
from indknn.core.noise import Noise
from indknn.engine import Engine, new_index, new_ledger
from indknn.ledger import Scope
from indknn.models import adviser, shared_model
from indknn.records.shard import Admitted, Shard
from indknn.settings import Settings
from indknn.types import GRID, FloatArray, IntArray, OwnerId, Vectors
from indknn_lab.audits.patches import patched
from indknn_lab.audits.tap import Noised, tap

Sight: TypeAlias = Literal["labels", "counts", "votes"]
"""What the adversary sees: labels alone; noisy counts and labels; noisy counts and noisy votes."""

TARGET: OwnerId = "target"


@dataclass(frozen=True)
class Ask:
    """A query, and whether the audited adversary sees its answer."""

    query: FloatArray
    analyst: Scope = None
    seen: bool = True


@dataclass(frozen=True)
class Add:
    """Records of one owner, or of several others."""

    X: FloatArray
    y: tuple[int, ...]
    owner: OwnerId | tuple[OwnerId | int, ...] = TARGET

    @property
    def owners(self) -> list[OwnerId]:
        """One per record."""
        return as_owner_list(self.owner) if isinstance(self.owner, tuple) else [self.owner] * len(self.y)


@dataclass(frozen=True)
class Forget:
    """An owner goes."""

    owner: OwnerId = TARGET


@dataclass(frozen=True)
class Train:
    """The operator has the shared model trained, or looked whether newcomers call for that."""


Event: TypeAlias = Ask | Add | Forget | Train


@dataclass
class View:
    """What the adversary knows so far: labels asked for, and the log-likelihood ratio of in against out."""

    labels: list[int] = field(default_factory=list)
    loss: float = 0.0


@dataclass(frozen=True)
class Scenario:
    """A history with and without the target, what is seen of it, and what is claimed about it.

    The claim is the ε of the settings, unless analysts pool their views or there is a global ledger. `share` is how
    many trials it gets, relative to the others. `hurried` puts the constants of `HURRY` in place.
    """

    name: str
    about: str
    settings: Settings
    script: Callable[[View, np.random.Generator], Iterator[Event]]
    sight: Sight = "votes"
    claimed_epsilon: float | None = None
    exact_noise: bool = False
    share: float = 1.0
    hurried: bool = False

    @property
    def epsilon(self) -> float:
        """The claim."""
        return self.settings.epsilon if self.claimed_epsilon is None else self.claimed_epsilon


class Shadow:
    """What an adversary who knows all records expects of each release, with and without the target."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self.others = Shard(new_index(settings), new_ledger(settings))
        self.target = Shard(new_index(settings), new_ledger(settings))
        self._transcripts: dict[Scope, Transcript] = {}

    def apply(self, event: Add | Forget) -> None:
        """Records come or go."""
        shard = self.target if event.owner == TARGET else self.others
        if isinstance(event, Add):
            shard.add(*self._settings.prepare(event.X, np.array(event.y)), event.owners)
        else:
            shard.forget(shard.slots_of_owners([event.owner]))

    def keep_step(self, engine: Engine) -> None:
        """What is public about the product: rounds that have begun, and whose answers count for everybody."""
        for shard in (self.others, self.target):
            shard.epoch, shard.ledger.house = engine.shard.epoch, engine.ledger.house

    def shared_loss(self, released: Sequence[Noised]) -> float:
        """The log-likelihood ratio of what every analyst sees, and the shadows' charges for it."""
        total = 0.0
        for one in released:
            if one.again is not None:
                others, target = one.again(self.others), one.again(self.target)
                total += gaussian_loss(one.noisy[0] - others, target, one.scales[0] if one.scales else GRID)
        return total

    def loss(self, query: Vectors, analyst: Scope, released: Sequence[Noised], sight: Sight) -> float:
        """The same of what one query released to the analyst who asked."""
        total, admitted = 0.0, None
        for one in released:
            if one.again is not None:
                continue
            if one.kind == "count":
                admitted = others, target = self._admit(query, one, analyst)
                if sight != "labels":
                    x, shift = one.noisy[0] - others.total * GRID, np.array([target.total * GRID])
                    total += gaussian_loss(x, shift, one.scales[0] if one.scales else GRID)
            else:
                total += self._votes_loss(query, analyst, one, admitted or self._admit(query, one, analyst), sight)
        return total

    def _admit(self, query: Vectors, one: Noised, analyst: Scope) -> tuple[Admitted, Admitted]:
        assert one.plan is not None
        tau, counted = tau_on_grid(one.plan.tau), one.kind == "count"
        (others,), (target,) = (shard.scan(query, tau) for shard in (self.others, self.target))
        return (
            self.others.admit(others, one.plan, analyst, counted=counted),
            self.target.admit(target, one.plan, analyst, counted=counted),
        )

    def _votes_loss(
        self, query: Vectors, analyst: Scope, one: Noised, admitted: tuple[Admitted, Admitted], sight: Sight
    ) -> float:
        (others, target), plan = admitted, one.plan
        assert plan is not None
        # Who sees labels only must guess K: without the target, and without its noise.
        K = max(others.total, MIN_K) * GRID if sight == "labels" and not self._settings.advised else one.K
        transcript, tau = self._transcript(analyst), tau_on_grid(plan.tau)
        base = transcript.votes(query, tau, plan.n_classes) + self.others.settle(others, K, plan)
        shift = self.target.settle(target, K, plan)
        transcript.add(query, keys_of(query)[0], one.label)
        if not shift.any():
            return 0.0
        if sight != "votes" or one.bare:
            return label_loss(one.label, base, shift, plan.scale2(K))
        x = one.noisy[0] - base
        if plan.contrast:  # only P times the votes leaves
            return gaussian_loss(x - x.mean(), shift - shift.mean(), plan.scale2(K))
        return gaussian_loss(x, shift, plan.scale2(K))

    def _transcript(self, analyst: Scope) -> Transcript:
        if analyst not in self._transcripts:
            pool = new_index(self._settings) if self._settings.reuse == "labels" else None
            self._transcripts[analyst] = Transcript(pool)
        return self._transcripts[analyst]


def play(scenario: Scenario, present: bool, noise: Noise, rng: np.random.Generator) -> float:
    """Run the history through the product, in one of the two worlds; the score of what was seen."""
    with hurried() if scenario.hurried else nullcontext(), tap() as tape:
        engine, shadow, view = Engine(scenario.settings, noise), Shadow(scenario.settings), View()
        for event in scenario.script(view, rng):
            if isinstance(event, Add | Forget):
                if present or event.owner != TARGET:
                    _apply(engine, event)
                shadow.apply(event)
                continue
            tape.clear()
            label = _happens(engine, event)
            view.loss += shadow.shared_loss(tape)
            shadow.keep_step(engine)
            if isinstance(event, Ask) and event.seen:
                view.labels.append(label)
                query = scenario.settings.quantise(event.query[None, :], "the query")
                view.loss += shadow.loss(query, event.analyst, tape, scenario.sight)
    return view.loss


def _happens(engine: Engine, event: Ask | Train) -> int:
    """The label, where a query is asked."""
    if isinstance(event, Ask):
        return int(engine.predict(event.query[None, :], event.analyst)[0])
    for _ in engine.train():
        pass
    return -1


def _apply(engine: Engine, event: Add | Forget) -> None:
    if isinstance(event, Add):
        engine.add(event.X, np.array(event.y), event.owners)
    else:
        engine.forget_owners([event.owner])


HURRY: list[tuple[Any, str, Any]] = [
    (shared_model, "STEPS", 4),
    (shared_model, "RESERVE", 0.5),
    (shared_model, "COUNT_PRICE", 0.05),
    (shared_model, "RECOUNT_PRICE", 0.05),
    (shared_model, "CARD_PRICE", 0.1),
    (adviser, "MOST_NOISE", 1e9),
    (adviser, "MOST_WEIGHT", 1.0),
    (adviser, "LOOK_EVERY", 3),
    (adviser, "LATELY", 6),
    (predictor, "SCHEDULE_FIRST", 4),
]
"""A model that learns in a few steps at a higher price, and looks for newcomers after a few answers; votes anyhow."""


def hurried() -> AbstractContextManager[None]:
    """With such a model."""
    return patched(HURRY)


def gaussian_loss(x: IntArray | FloatArray, shift: IntArray | FloatArray, scale: int) -> float:
    """log of the ratio of densities at x, shifted against not."""
    s = float(scale)
    a, d = x / s, shift / s
    return float((a * d - d * d / 2.0).sum())


_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(40)
_LOG_WEIGHTS = np.log(_WEIGHTS / _WEIGHTS.sum())


def label_loss(label: int, base: IntArray, shift: IntArray, scale: int) -> float:
    """log of the ratio of probabilities that this label wins."""
    return _log_win(label, (base + shift) / scale) - _log_win(label, base / scale)


def _log_win(label: int, mean: FloatArray) -> float:
    """log P(argmax = label) for independent unit normals around these means, by quadrature."""
    gaps = np.delete(mean[label] - mean, label)
    if len(gaps) == 1:
        return float(log_ndtr(gaps[0] / np.sqrt(2.0)))
    return float(logsumexp(_LOG_WEIGHTS + log_ndtr(_NODES[:, None] + gaps[None, :]).sum(axis=1)))
