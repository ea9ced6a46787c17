"""An audit as JSON and as one HTML page that needs nothing else."""

from __future__ import annotations

import json
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from indknn_lab.audits.measure import Measured
from indknn_lab.audits.runner import Report

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;font-size:13px;width:100%}
td,th{padding:.25rem .5rem;text-align:left;border-bottom:1px solid #ddd}
.bad{color:#b00020;font-weight:600}.good{color:#1b6e37;font-weight:600}
svg text{font:12px system-ui,sans-serif}
"""


def as_dict(report: Report) -> dict[str, Any]:
    """Everything, with what follows from it."""
    data = asdict(report)
    for row, measured in zip(data["scenarios"], report.scenarios, strict=True):
        row.update(holds=measured.holds, tightness=measured.tightness)
    for row, verdict in zip(data["mutants"], report.mutants, strict=True):
        row["caught"] = verdict.caught
    strongest = report.strongest
    data["strongest"] = {"scenario": strongest.name, "share_of_claim": strongest.tightness}
    return {"passed": not report.problems, "problems": report.problems, **data}


def write(report: Report, folder: Path) -> tuple[Path, Path]:
    """The two files."""
    folder.mkdir(parents=True, exist_ok=True)
    plain, page = folder / "audit.json", folder / "audit.html"
    plain.write_text(json.dumps(as_dict(report), indent=1))
    page.write_text(html(report), encoding="utf-8")
    return plain, page


def summary(report: Report) -> str:
    """In plain words, for a terminal."""
    worst, caught = report.strongest, sum(v.caught for v in report.mutants)
    lines = [f"{'scenario':<36}{'claimed':>9}{'counted':>9}{'by μ':>9}{'trials':>10}"]
    lines += [
        f"{m.name:<36}{m.claimed_epsilon:>9.2f}{m.epsilon:>9.2f}{m.epsilon_gdp:>9.2f}{m.trials:>10,}"
        f"{'' if m.holds else '  ABOVE THE CLAIM'}"
        for m in report.scenarios
    ]
    once, members = report.one_run, report.membership
    lines += [
        "",
        f"One run, {once.canaries:,} canaries: ε >= {once.epsilon:.2f}, claimed {once.claimed_epsilon:.2f}.",
        f"Strongest bound: {worst.tightness:.0%} of the claim ({worst.name}).",
        f"Mutants caught: {caught} of {len(report.mutants)}.",
        f"Membership inference: AUC {members.auc:.3f}, bound {members.bound_auc:.3f}, "
        f"no privacy {members.control_auc:.3f}.",
        *(
            f"Floating point, {f.sampler}: right {f.success:.1%}, the noise allows {f.allowed:.1%}."
            for f in report.floats
        ),
        *(
            f"Timing, {t.question} right {t.open_success:.0%}; "
            f"on a tick of {t.tick_milliseconds:.1f} ms {t.paced_success:.0%}."
            for t in report.timing
        ),
        f"{report.seconds:.0f} s, seed {report.seed}. " + ("PASSED" if not report.problems else "FAILED:"),
        *report.problems,
    ]
    return "\n".join(lines)


def html(report: Report) -> str:
    """One page."""
    verdict = "<p class=good>Passed.</p>"
    if report.problems:
        verdict = "<p class=bad>Failed.</p>" + "".join(f"<p class=bad>{escape(p)}</p>" for p in report.problems)
    once, members = report.one_run, report.membership
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>indknn audit</title><style>{_STYLE}</style>",
        f"<h1>Audit of the promise</h1>{verdict}",
        f"<p>{report.minutes:g} minutes asked for, {report.seconds:.0f} s used, seed {report.seed}, "
        f"{escape(report.machine)}. All bounds together hold with {report.confidence:.0%} confidence "
        f"(each with error {report.error_per_bound:.1e}).</p>",
        "<h2>Claimed against measured ε</h2>"
        "<p>Outline: the claim. Dark: ε proven by counting events at δ. "
        "Light: ε at δ that follows from the proven μ.</p>",
        _bars(report.scenarios),
        _table(
            ("scenario", "sees", "path", "δ", "claimed ε", "ε", "ε by μ", "claimed μ", "μ", "trials", "seed", "s", ""),
            [_row(m) for m in report.scenarios],
        ),
        "<h2>One run with many canaries</h2>"
        f"<p>{once.canaries:,} canaries, {once.correct} of {once.guesses} guesses right: ε >= {once.epsilon:.2f}, "
        f"claimed {once.claimed_epsilon:.2f} at δ = {once.delta:g} (seed {once.seed}, {once.seconds:.0f} s).</p>",
        "<h2>Mutants</h2>",
        _table(
            ("mutant", "what is wrong", "checks that saw it", "audits that saw it", "s", ""),
            [
                (
                    v.mutant,
                    v.wrong,
                    _listed(v.checks),
                    _listed(v.probes),
                    f"{v.seconds:.1f}",
                    _mark(v.caught, "caught", "SURVIVED"),
                )
                for v in report.mutants
            ],
        ),
        "<h2>Membership inference</h2>"
        f"<p>{members.people:,} people, labels only. Area under the curve: {members.auc:.3f}; "
        f"bound {members.bound_auc:.3f}; the same vote without privacy {members.control_auc:.3f}.</p>",
        _roc(report),
        "<h2>Floating point</h2>",
        _table(
            ("noise", "released", "right", "at least", "the noise allows", ""),
            [
                (
                    f.sampler,
                    f"{f.released:,}",
                    f"{f.success:.2%}",
                    f"{f.success_at_least:.2%}",
                    f"{f.allowed:.2%}",
                    _mark(not f.leaks, "no leak", "leaks"),
                )
                for f in report.floats
            ],
        ),
        "<h2>Timing</h2>",
        _table(
            ("question", "answers", "right without tick", "with tick", "ms per answer", "tick, ms", "late"),
            [
                (
                    t.question,
                    str(t.answers),
                    f"{t.open_success:.0%}",
                    f"{t.paced_success:.0%}",
                    f"{t.open_milliseconds:.2f}",
                    f"{t.tick_milliseconds:.2f}",
                    str(t.late),
                )
                for t in report.timing
            ],
        ),
        "</html>",
    ]
    return "\n".join(parts)


def _row(m: Measured) -> tuple[str, ...]:
    figures = (m.claimed_epsilon, m.epsilon, m.epsilon_gdp, m.claimed_mu, m.mu)
    return (
        f"<b>{escape(m.name)}</b><br>{escape(m.about)}",
        m.sees,
        m.path,
        f"{m.delta:g}",
        *(f"{value:.3f}" for value in figures),
        f"{m.trials:,}",
        str(m.seed),
        f"{m.seconds:.1f}",
        _mark(m.holds, "holds", "ABOVE"),
    )


def _mark(good: bool, yes: str, no: str) -> str:
    return f"<span class={'good' if good else 'bad'}>{yes if good else no}</span>"


def _listed(found: dict[str, str]) -> str:
    return "<br>".join(f"<b>{escape(name)}</b>: {escape(what)}" for name, what in found.items()) or "–"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{top}</tr>{body}</table>"


def _bars(scenarios: tuple[Measured, ...]) -> str:
    step, left, wide = 22, 250, 600
    unit = wide / max(m.claimed_epsilon for m in scenarios)
    marks = []
    for i, m in enumerate(scenarios):
        y = i * step + 4
        marks.append(f'<text x="{left - 8}" y="{y + 11}" text-anchor="end">{escape(m.name)}</text>')
        for value, look in (
            (m.claimed_epsilon, 'fill="none" stroke="#888"'),
            (m.epsilon_gdp, 'fill="#9ec5e8"'),
            (m.epsilon, 'fill="#1f5f99"'),
        ):
            inset = 4 if "1f5f99" in look else 0
            marks.append(
                f'<rect x="{left}" y="{y + inset}" width="{value * unit:.1f}" height="{14 - 2 * inset}" {look}/>'
            )
    return f'<svg width="{left + wide + 20}" height="{len(scenarios) * step + 8}" role="img">{"".join(marks)}</svg>'


def _roc(report: Report) -> str:
    m, size = report.membership, 300
    curves = []
    for rates, look, name in (
        (m.bound, "#888", "bound"),
        (m.private, "#1f5f99", "indknn"),
        (m.control, "#b00020", "no privacy"),
    ):
        points = " ".join(f"{40 + size * x:.1f},{10 + size * (1 - y):.1f}" for x, y in zip(m.fpr, rates, strict=True))
        curves.append(f'<polyline points="{points}" fill="none" stroke="{look}" stroke-width="2"/>')
        curves.append(f'<text x="{size + 60}" y="{40 + 20 * len(curves) // 2}" fill="{look}">{name}</text>')
    frame = f'<rect x="40" y="10" width="{size}" height="{size}" fill="none" stroke="#ccc"/>'
    axes = (
        f'<text x="{40 + size // 2}" y="{size + 28}">false positive rate</text><text x="2" y="{size // 2}">TPR</text>'
    )
    return f'<svg width="{size + 180}" height="{size + 40}" role="img">{frame}{"".join(curves)}{axes}</svg>'
