"""Writes the results of the demonstration as one page of HTML. It loads nothing else. Its charts are SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template

_WIDTH, _ROW, _LEFT = 500, 34, 190
_FLOOR = 0.6  # the accuracy at which bars begin; all results are above it


def page(title: str, facts: dict[str, str], accuracy: Sequence[tuple[str, float, str]], counts: Sequence[int]) -> str:
    """The page. `accuracy` has a name, a share and a kind for each bar.

    `counts` are the numbers of people by the tenth of the budget that they have spent.
    """
    template = Template((files("indknn_lab.demonstration") / "report.html").read_text())
    drawn = {"accuracy": _accuracy(accuracy), "spending": _spending(counts)}
    return template.substitute({name: escape(text) for name, text in facts.items()}, title=escape(title), **drawn)


def _accuracy(bars: Sequence[tuple[str, float, str]]) -> str:
    rows = []
    for i, (name, share, kind) in enumerate(bars):
        y, width = _ROW * i + 22, max(2, round((_WIDTH - _LEFT - 50) * (share - _FLOOR) / (1 - _FLOOR)))
        rows += [
            f'<text x="{_LEFT - 10}" y="{y}" text-anchor="end">{escape(name)}</text>',
            f'<rect class="{kind}" x="{_LEFT}" y="{y - 16}" width="{width}" height="22" rx="3"/>',
            f'<text x="{_LEFT + width + 8}" y="{y}">{share:.3f}</text>',
        ]
    return _svg("Share of right answers", _ROW * len(bars) + 6, rows)


def _spending(counts: Sequence[int]) -> str:
    step, rows = _WIDTH // len(counts), []
    for i, n in enumerate(counts):
        height, middle = round(140 * n / max(*counts, 1)), step * i + step // 2
        rows += [
            f'<rect class="ours" x="{step * i + 4}" y="{170 - height}" width="{step - 8}" height="{height}" rx="2"/>',
            f'<text x="{middle}" y="{162 - height}" text-anchor="middle">{n:,}</text>',
            f'<text class="soft" x="{middle}" y="190" text-anchor="middle">to {100 * (i + 1) // len(counts)}%</text>',
        ]
    return _svg("How many people have spent which share of their budget", 200, rows)


def _svg(label: str, height: int, rows: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}">{"".join(rows)}</svg>'
