"""One look for all figures: a method has the same colour, marker and line wherever it appears."""

from __future__ import annotations

from typing import Any

_BLUE, _ORANGE, _GREEN, _RED, _PURPLE, _GREY = "#1f5fa8", "#d9730d", "#2f8f4e", "#c0392b", "#7d4fa8", "#777777"

STYLES: dict[str, dict[str, Any]] = {
    "indknn": {"color": _BLUE, "marker": "o"},
    "indknn_rbf": {"color": _GREEN, "marker": "s"},
    "indknn_gdp": {"color": _BLUE, "marker": "o", "linestyle": ":", "alpha": 0.7},
    "indknn_reuse": {"color": _PURPLE, "marker": "D"},
    "indknn_alone": {"color": _BLUE, "marker": "", "linestyle": "--"},
    "mixture": {"color": _BLUE, "marker": ""},
    "votes": {"color": _RED, "marker": ""},
    "sgd": {"color": _GREY, "marker": ""},
    "sgd_retrained": {"color": _GREY, "marker": "", "linestyle": "--"},
    "ceiling": {"color": _GREEN, "marker": "", "linestyle": ":"},
    "median": {"color": "#c9a400", "marker": "."},
    "private_knn": {"color": _RED, "marker": "v"},
    "private_knn_one": {"color": _RED, "marker": "", "linestyle": ":", "alpha": 0.7},
    "noisy_sgd": {"color": _GREY, "marker": "^"},
    "noisy_sgd_slow": {"color": _GREY, "marker": "^", "linestyle": "--"},
    "hash": {"color": _ORANGE, "marker": "x"},
    "hash10": {"color": "#f3c08b", "marker": "x"},
    "hash20": {"color": "#e89a4c", "marker": "x"},
    "hash30": {"color": _ORANGE, "marker": "x"},
}
_LINES = (_BLUE, _GREEN, _ORANGE, _RED, _PURPLE, "#2a9fb0", "#8c6d31", _GREY)
_MARKERS = "osDv^x*P"

RC: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "svg.fonttype": "none",
    "svg.hashsalt": "indknn",
}


def style_of(role: str) -> dict[str, Any]:
    """How to draw a role. Roles `line0`, `line1`, ... are told apart and mean nothing else.

    >>> style_of("indknn")["marker"], style_of("line1")["marker"]
    ('o', 's')
    """
    if role.startswith("line"):
        i = int(role.removeprefix("line"))
        return {"color": _LINES[i % len(_LINES)], "marker": _MARKERS[i % len(_MARKERS)]}
    return STYLES.get(role, {"color": _GREY, "marker": "."})
