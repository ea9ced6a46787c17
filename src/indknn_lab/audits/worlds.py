"""Neighbouring histories and the privacy loss of a transcript.

A scenario is a script of events: somebody is added or forgotten, a query is asked, the shared model is trained. One
owner is the *target*. In one world the target's events happen, and in the other they do not. Everything else is the
same. The script may use everything that was released so far (`View`), so adversaries are adaptive.

The adversary knows everybody's records. They keep two *shadows*. These are shards of the product: one holds all people
except the target, and one holds only the target. They get the released counts and sums. From the shadows follows by how
much the target shifts each release, and from which value. For a Gaussian release x with scale s, shifted by Δ from b,
the log-likelihood ratio is ((x - b)·Δ - |Δ|²/2)/s². The sum over the transcript is the best possible score (Neyman &
Pearson 1933).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from scipy.special import log_ndtr, logsumexp

from indknn.answering import predictor
from indknn.answering.predictor import Transcript, keys_of
from indknn.core.inputs import as_owner_list
from indknn.core.mechanism import MIN_K
from indknn.core.noise import Noise
from indknn.engine import Engine, new_ledger
from indknn.ledger import Scope
from indknn.models import adviser, numbers, shared_model
from indknn.models.shown_numbers import ShownNumbers
from indknn.records.shard import Admitted, Shard, new_index
from indknn.settings import Settings
from indknn.types import GRID, FloatArray, IntArray, OwnerId, Vectors, tau_on_grid
from indknn_lab.audits.patches import patched
from indknn_lab.audits.tap import Noised, tap

Sight: TypeAlias = Literal["labels", "counts", "votes"]
"""What the adversary sees: only labels, or noisy counts and labels, or noisy counts and noisy votes."""

TARGET: OwnerId = "target"


@dataclass(frozen=True)
class Ask:
    """A query, and whether the audited adversary sees its answer."""

    query: FloatArray
    analyst: Scope = None
    seen: bool = True


@dataclass(frozen=True)
class Add:
    """Records of one owner, or of several owners, are added."""

    X: FloatArray
    y: tuple[int, ...]
    owner: OwnerId | tuple[OwnerId | int, ...] = TARGET

    @property
    def owners(self) -> list[OwnerId]:
        return as_owner_list(self.owner) if isinstance(self.owner, tuple) else [self.owner] * len(self.y)


@dataclass(frozen=True)
class Forget:
    """An owner is forgotten."""

    owner: OwnerId = TARGET


@dataclass(frozen=True)
class Train:
    """The operator asks for training. It trains the shared model, or checks whether there are enough newcomers."""


Event: TypeAlias = Ask | Add | Forget | Train


@dataclass
class View:
    """What the adversary knows so far: the labels seen, and the log-likelihood ratio of "in" against "out"."""

    labels: list[int] = field(default_factory=list)
    loss: float = 0.0


@dataclass(frozen=True)
class Scenario:
    """A history with and without the target, what the adversary sees of it, and the claim about it.

    The claim is the ε of the settings, unless analysts share their answers or there is a global ledger. `share` is the
    relative number of trials. `hurried` puts the constants of `HURRY` in place.
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
        return self.settings.epsilon if self.claimed_epsilon is None else self.claimed_epsilon


class Shadow:
    """What an adversary who knows all records expects of each release, with and without the target."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self.others = Shard(new_index(settings), new_ledger(settings))
        self.target = Shard(new_index(settings), new_ledger(settings))
        self._transcripts: dict[Scope, Transcript] = {}

    def apply(self, event: Add | Forget) -> None:
        shard = self.target if event.owner == TARGET else self.others
        if isinstance(event, Add):
            shard.add(*self._settings.prepare(event.X, np.array(event.y)), event.owners)
        else:
            shard.forget(shard.slots_of_owners([event.owner]))

    def keep_step(self, engine: Engine) -> None:
        """Copy public state of the product: rounds that have started, whose answers count for everybody, the model."""
        model = engine.predictor.model
        for shard in (self.others, self.target):
            shard.epoch, shard.ledger.joint = engine.shard.epoch, engine.ledger.joint
            if model is not None and isinstance(model.shown, ShownNumbers):
                shard.show(model.shown.rule)

    def shared_loss(self, released: Sequence[Noised]) -> float:
        """The log-likelihood ratio of what every analyst sees. It also charges the shadows for it."""
        total = 0.0
        for one in released:
            if one.again is not None:
                others, target = one.again(self.others), one.again(self.target)
                total += gaussian_loss(one.noisy[0] - others, target, one.scales[0] if one.scales else GRID)
        return total

    def loss(self, query: Vectors, analyst: Scope, released: Sequence[Noised], sight: Sight) -> float:
        """The same for what one query released to the analyst who asked."""
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
        # An adversary who sees only labels must guess K. The guess is the count without the target and without noise.
        K = max(others.total, MIN_K) * GRID if sight == "labels" and not self._settings.advised else one.K
        transcript = self._transcript(analyst)
        base = transcript.votes(query, plan) + self.others.settle(others, K, plan)
        shift = self.target.settle(target, K, plan)
        transcript.add(query, keys_of(query)[0], one.label)
        if not shift.any():
            return 0.0
        if sight != "votes" or one.bare:
            return label_loss(one.label, base, shift, plan.scale2(K))
        x = one.noisy[0] - base
        if plan.contrast:  # only P times the votes is released
            return gaussian_loss(x - x.mean(), shift - shift.mean(), plan.scale2(K))
        return gaussian_loss(x, shift, plan.scale2(K))

    def _transcript(self, analyst: Scope) -> Transcript:
        if analyst not in self._transcripts:
            pool = new_index(self._settings) if self._settings.reuse == "labels" else None
            self._transcripts[analyst] = Transcript(pool)
        return self._transcripts[analyst]


def play(scenario: Scenario, present: bool, noise: Noise, rng: np.random.Generator) -> float:
    """Run the history through the product, in one of the two worlds. Returns the score of what the adversary saw."""
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
    """Make the event happen. Returns the label if it is a query."""
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
    (numbers, "NUMBERS_RESERVE", 0.5),
    (numbers, "MOST_MEAN_STEPS", 1),
    (numbers, "MISFIT", 1e9),
    (predictor, "SCHEDULE_FIRST", 4),
]
"""Constants for short audits. The model learns in a few expensive steps, looks for newcomers after a few answers, and
always asks for votes."""


def hurried() -> AbstractContextManager[None]:
    """Put the constants of `HURRY` in place inside the `with`."""
    return patched(HURRY)


def gaussian_loss(x: IntArray | FloatArray, shift: IntArray | FloatArray, scale: int) -> float:
    """The logarithm of the ratio of the densities at x, with the shift and without it."""
    s = float(scale)
    a, d = x / s, shift / s
    return float((a * d - d * d / 2.0).sum())


_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(40)
_LOG_WEIGHTS = np.log(_WEIGHTS / _WEIGHTS.sum())


def label_loss(label: int, base: IntArray, shift: IntArray, scale: int) -> float:
    """The logarithm of the ratio of the probabilities that this label wins, with the shift and without it."""
    return _log_win(label, (base + shift) / scale) - _log_win(label, base / scale)


def _log_win(label: int, mean: FloatArray) -> float:
    """log P(argmax = label) for independent normals of variance 1 with these means, by numerical integration."""
    gaps = np.delete(mean[label] - mean, label)
    if len(gaps) == 1:
        return float(log_ndtr(gaps[0] / np.sqrt(2.0)))
    return float(logsumexp(_LOG_WEIGHTS + log_ndtr(_NODES[:, None] + gaps[None, :]).sum(axis=1)))
