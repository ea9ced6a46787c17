"""Neighbouring histories and the privacy loss of a transcript.

A scenario is a script of events: somebody is added or forgotten, a query is asked. One owner is the *target*. In
the world where they are present their events happen, in the other they do not; everything else is the same. The
script may look at all that was released so far (`View`), so adversaries are adaptive.

The adversary knows everybody's records. They follow two *shadows*, shards of the product that hold only the others
and only the target, along the released counts and sums: what those give is by how much the target shifts each
release, and from where. For a Gaussian release at scale s, shifted by Δ from b, the log-likelihood ratio is
((x - b)·Δ - |Δ|²/2)/s²; their sum over the transcript is the best possible score (Neyman & Pearson 1933).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from scipy.special import log_ndtr, log_softmax, logsumexp

from indknn.answering.transcript import Transcript, query_key
from indknn.core import mechanism
from indknn.core.inputs import as_owner_list
from indknn.core.kernels import tau_on_grid
from indknn.core.mechanism import MIN_K, Plan
from indknn.core.noise import Noise
from indknn.core.releases import Votes
from indknn.engine import Engine, new_index, new_ledger
from indknn.ledger import Scope
from indknn.models import adviser
from indknn.records.shard import Shard
from indknn.settings import Settings
from indknn.types import GRID, FloatArray, IntArray, OwnerId, Vectors
from indknn_lab.audits.tap import Release, SumRelease, tap

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


Event: TypeAlias = Ask | Add | Forget


@dataclass
class View:
    """What the adversary knows so far: labels asked for, and the log-likelihood ratio of in against out."""

    labels: list[int] = field(default_factory=list)
    loss: float = 0.0


@dataclass(frozen=True)
class Scenario:
    """A history with and without the target, what is seen of it, and what is claimed about it.

    `claimed_budget` is the B that the claim rests on: the settings' own, unless analysts pool their views or
    there is a global ledger.
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
        assert settings.tau is not None
        self.plan = settings.plan(settings.tau)
        self._settings = settings
        self.others = Shard(new_index(settings), new_ledger(settings))
        self.target = Shard(new_index(settings), new_ledger(settings))
        self._transcripts: dict[Scope, Transcript] = {}

    def add(self, event: Add) -> None:
        """Records come."""
        vectors, labels = self._settings.prepare(event.X, np.array(event.y))
        shard = self.target if event.owner == TARGET else self.others
        shard.add(vectors, labels, event.owners)

    def forget(self, event: Forget) -> None:
        """Records go."""
        (self.target if event.owner == TARGET else self.others).forget_owners([event.owner])

    def sum_loss(self, release: SumRelease) -> float:
        """The log-likelihood ratio of a sum over records, and the shadows' charges for it."""
        total = 0.0
        base, shift = release.again(self.others), release.again(self.target)
        for x, b, d, scale in zip(release.noisy, base, shift, release.scales, strict=True):
            total += gaussian_loss(x - b, d, scale)
        return total

    def loss(self, query: Vectors, analyst: Scope, release: Release, sight: Sight) -> float:
        """The log-likelihood ratio of one release, and the shadows' charges for it."""
        transcript = self._transcript(analyst)
        plan = self.plan if release.plan is None or not self._settings.advised else release.plan
        tau = tau_on_grid(plan.tau)
        (near,) = self.others.scan(query, tau)
        others = self.others.select(near, plan, analyst, counted=release.counted)
        (near,) = self.target.scan(query, tau)
        target = self.target.select(near, plan, analyst, counted=release.counted)
        # Who sees labels only must guess K: without the target, and without its noise.
        K = max(others.total, MIN_K) * GRID if sight == "labels" else release.K
        if self._settings.advised:
            K = release.votes_at  # foretold from what was released
        scale = plan.scale2(K)
        base = transcript.votes(query, tau, plan.n_classes) + self.others.settle(others, K, plan)
        shift = self.target.settle(target, K, plan)
        kept = None
        if self._settings.reuse == "votes" and release.scores is not None:
            kept = Votes(K, scale, K, 0.0, 1.0, mechanism.centred(release.scores))
        transcript.add(query, query_key(query), release.label, kept)
        total = 0.0
        if sight != "labels" and release.raw is not None:
            x, shifted = np.array([release.raw - others.total * GRID]), np.array([target.total * GRID])
            total += gaussian_loss(x, shifted, plan.scale1)
        if not shift.any():
            return total
        if release.chosen:
            return total + choice_loss(release.label, base, shift, scale)
        if sight == "votes" and release.scores is not None:
            x = release.scores - base
            if plan.contrast:  # only P times the votes leaves
                return total + gaussian_loss(x - x.mean(), shift - shift.mean(), scale)
            return total + gaussian_loss(x, shift, scale)
        return total + label_loss(release.label, base, shift, scale)

    def _transcript(self, analyst: Scope) -> Transcript:
        if analyst not in self._transcripts:
            self._transcripts[analyst] = Transcript(
                new_index(self._settings) if self._settings.reuse in {"labels", "votes"} else None
            )
        return self._transcripts[analyst]


def play(scenario: Scenario, present: bool, noise: Noise, rng: np.random.Generator) -> float:
    """Run the history through the product, in one of the two worlds; the score of what was seen."""
    with ExitStack() as stack:
        if scenario.hurried:
            stack.enter_context(hurried())
        releases = stack.enter_context(tap())
        engine, shadow, view = Engine(scenario.settings, noise), Shadow(scenario.settings), View()
        for event in scenario.script(view, rng):
            if not isinstance(event, Ask):
                if present or event.owner != TARGET:
                    _apply(engine, event)
                shadow.add(event) if isinstance(event, Add) else shadow.forget(event)
                continue
            before, sums_before = len(releases), len(releases.sums)
            label = int(engine.predict(event.query[None, :], event.analyst)[0])
            shadow.others.epoch = shadow.target.epoch = engine.shard.epoch
            if not event.seen:
                continue
            view.labels.append(label)
            for one in releases.sums[sums_before:]:
                view.loss += shadow.sum_loss(one)
            if len(releases) > before:  # else a repeat or a model, answered from what was released already
                query = scenario.settings.quantise(event.query[None, :], "the query")
                view.loss += shadow.loss(query, event.analyst, releases[-1], scenario.sight)
    return view.loss


def _apply(engine: Engine, event: Add | Forget) -> None:
    if isinstance(event, Add):
        engine.add(event.X, np.array(event.y), event.owners)
    else:
        engine.forget_owners([event.owner])


HURRY: dict[str, Any] = {
    "FIRST_LESSONS": (2, 4, 6, 9),
    "FIRST_CARD": 2,
    "CARDS_GROW": 2,
    "FRESH_EVERY": 3,
    "FRESH_PRICE": 0.1,
    "CARD_PRICE": 0.1,
    "_STEP": 3,
    "_ENOUGH": 2,
}
"""An adviser that learns, has its models judged and counts fresh records after a few answers, at a higher price."""


@contextmanager
def hurried() -> Iterator[None]:
    """With such an adviser."""
    with ExitStack() as undo:
        for name, value in HURRY.items():
            undo.callback(setattr, adviser, name, getattr(adviser, name))
            setattr(adviser, name, value)
        yield


def gaussian_loss(x: IntArray | FloatArray, shift: IntArray | FloatArray, scale: int) -> float:
    """log of the ratio of densities at x, shifted against not."""
    s = float(scale)
    a, d = x / s, shift / s
    return float((a * d - d * d / 2.0).sum())


_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(40)
_LOG_WEIGHTS = np.log(_WEIGHTS / _WEIGHTS.sum())


def choice_loss(label: int, base: IntArray, shift: IntArray, scale: int) -> float:
    """log of the ratio of probabilities that the exponential mechanism chooses this label."""
    return float(log_softmax((base + shift) / scale)[label] - log_softmax(base / scale)[label])


def label_loss(label: int, base: IntArray, shift: IntArray, scale: int) -> float:
    """log of the ratio of probabilities that this label wins."""
    return _log_win(label, (base + shift) / scale) - _log_win(label, base / scale)


def _log_win(label: int, mean: FloatArray) -> float:
    """log P(argmax = label) for independent unit normals around these means, by quadrature."""
    gaps = np.delete(mean[label] - mean, label)
    if len(gaps) == 1:
        return float(log_ndtr(gaps[0] / np.sqrt(2.0)))
    return float(logsumexp(_LOG_WEIGHTS + log_ndtr(_NODES[:, None] + gaps[None, :]).sum(axis=1)))


__all__ = ["TARGET", "Add", "Ask", "Event", "Forget", "Plan", "Scenario", "Shadow", "Sight", "View", "play"]
