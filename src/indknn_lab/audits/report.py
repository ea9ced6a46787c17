"""Writes the results of an audit as JSON and as one HTML page that loads nothing else."""

from __future__ import annotations

import json
from dataclasses import asdict
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from indknn_lab.audits.attacks import Membership
from indknn_lab.audits.runner import Outcome, Report


def as_dict(report: Report) -> dict[str, Any]:
    """All results as plain values, with the verdicts that follow from them."""
    data = asdict(report)
    for row, measured in zip(data["scenarios"], report.scenarios, strict=True):
        row.update(holds=measured.holds, tightness=measured.tightness)
    if strongest := report.strongest:
        data["strongest"] = {"scenario": strongest.name, "share_of_claim": strongest.tightness}
    verdict = {"verdict": report.outcome.value, "passed": report.outcome is Outcome.PASSED}
    return {**verdict, "problems": report.problems, **data}


def write(report: Report, folder: Path) -> tuple[Path, Path]:
    """Write both files and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    plain, page = folder / "audit.json", folder / "audit.html"
    plain.write_text(json.dumps(as_dict(report), indent=1))
    page.write_text(html(report), encoding="utf-8")
    return plain, page


def summary(report: Report) -> str:
    """A summary in plain words, for a terminal."""
    lines = [f"{'scenario':<36}{'claimed':>9}{'counted':>9}{'by μ':>9}{'trials':>10}"]
    lines += [
        f"{m.name:<36}{m.claimed_epsilon:>9.2f}{m.epsilon:>9.2f}{m.epsilon_gdp:>9.2f}{m.trials:>10,}"
        f"{'' if m.holds else '  ABOVE THE CLAIM'}"
        for m in report.scenarios
    ]
    lines += [
        "",
        *_sentences(report),
        *_closing(report),
        f"{report.seconds:.0f} s, {report.worked:.0f} s of the processor, seed {report.seed}. {report.outcome}",
        *report.problems,
        *_missing(report),
    ]
    return "\n".join(lines)


def _closing(report: Report) -> list[str]:
    """Lines that say how strong the audit was."""
    found = [f"Mutants caught: {sum(v.caught for v in report.mutants)} of {len(report.mutants)} tried."]
    if worst := report.strongest:
        found.insert(0, f"Strongest bound: {worst.tightness:.0%} of the claim ({worst.name}).")
    return found + [f"Fewer trials than planned, for want of time: {text}." for text in report.left_out]


def _missing(report: Report) -> list[str]:
    """What the audit had no time for, and so says nothing about."""
    return [f"missing, for want of time: {name}" for name in report.missing]


def _sentences(report: Report) -> list[str]:
    """Sentences about the results of the attacks."""
    once, members, found = report.one_run, report.membership, []
    if once:
        found.append(
            f"One run, {once.canaries:,} canaries: {once.correct} of {once.guesses} guesses right, "
            f"ε >= {once.epsilon:.2f}, claimed {once.claimed_epsilon:.2f}."
        )
    if members:
        found.append(
            f"Membership inference, {members.people:,} people: AUC {members.auc:.3f}, bound {members.bound_auc:.3f}, "
            f"no privacy {members.control_auc:.3f}."
        )
    return [
        *found,
        *(
            f"Floating point, {f.sampler}: right {f.success:.1%} of {f.released:,}, the noise allows {f.allowed:.1%}."
            for f in report.floats
        ),
        *(
            f"Timing, {t.question} Right {t.open_success:.0%} at {t.open_milliseconds:.2f} ms per answer; "
            f"on a tick of {t.tick_milliseconds:.1f} ms {t.paced_success:.0%} ({t.late} of {t.answers} late)."
            for t in report.timing
        ),
    ]


def html(report: Report) -> str:
    """The HTML page."""
    data, look = as_dict(report), "good" if report.outcome is Outcome.PASSED else "bad"
    lines = [f"{report.outcome.capitalize()}.", *report.problems, *_missing(report)]
    sentences = (*_sentences(report), *_closing(report))
    return Template((files("indknn_lab.audits") / "report.html").read_text(encoding="utf-8")).substitute(
        verdict="".join(f"<p class={look}>{escape(line)}</p>" for line in lines),
        asked="" if report.minutes is None else f"{report.minutes:g} minutes asked for, ",
        seconds=f"{report.seconds:.0f}",
        worked=f"{report.worked:.0f}",
        seed=report.seed,
        machine=escape(report.machine),
        confidence=f"{report.confidence:.0%}",
        error=f"{report.error_per_bound:.1e}",
        scenarios=_table(data["scenarios"]),
        mutants=_table(data["mutants"]),
        attacks="\n".join(f"<p>{escape(sentence)}</p>" for sentence in sentences),
        roc=_roc(report.membership) if report.membership else "",
    )


def _table(rows: list[dict[str, Any]]) -> str:
    top = "".join(f"<th>{name.replace('_', ' ')}</th>" for name in (rows[0] if rows else ()))
    body = "".join("<tr>" + "".join(f"<td>{_cell(*item)}</td>" for item in row.items()) + "</tr>" for row in rows)
    return f"<table><tr>{top}</tr>{body}</table>"


def _cell(name: str, value: Any) -> str:
    if name == "tightness":  # a value above 1 is a bug, and `holds` reports it
        return f"<meter value={value:.3f} title={value:.1%}></meter>"
    if isinstance(value, bool):
        return f"<span class={'good' if value else 'bad'}>{'yes' if value else 'NO'}</span>"
    if isinstance(value, dict):
        return "<br>".join(f"<b>{escape(check)}</b>: {escape(what)}" for check, what in value.items()) or "–"
    return f"{value:.4g}" if isinstance(value, float) else escape(str(value))


def _roc(m: Membership) -> str:
    """A chart of true positive rates over false positive rates of membership inference."""
    size, marks = 300, []
    curves = {"bound": (m.bound, "#888"), "indknn": (m.private, "#1f5f99"), "no privacy": (m.control, "#b00020")}
    for i, (name, (rates, look)) in enumerate(curves.items()):
        points = " ".join(f"{size * x:.1f},{size * (1 - y):.1f}" for x, y in zip(m.fpr, rates, strict=True))
        marks.append(f'<polyline points="{points}" fill="none" stroke="{look}" stroke-width="2"/>')
        marks.append(f'<text x="{size + 12}" y="{20 + 20 * i}" fill="{look}">{name}</text>')
    frame = f'<rect width="{size}" height="{size}" fill="none" stroke="#ccc"/>'
    axes = f'<text x="0" y="{size + 18}">true positive rate over false positive rate</text>'
    return f'<svg width="{size + 120}" height="{size + 30}" role="img">{frame}{"".join(marks)}{axes}</svg>'
