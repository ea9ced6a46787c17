"""Draws the panels of an outcome as PNG and SVG. A method has the same colour, marker and line in every figure."""

from __future__ import annotations

from math import nan
from pathlib import Path
from textwrap import fill
from typing import Any, cast

from indknn.errors import IndKNNError

_WIDTH, _HEIGHT = 5.2, 4.3
_TITLE = 56  # letters per line
_PNG_DPI = 110
_BLUE, _ORANGE, _GREEN, _RED, _PURPLE, _GREY = "#1f5fa8", "#d9730d", "#2f8f4e", "#c0392b", "#7d4fa8", "#777777"

STYLES: dict[str, dict[str, Any]] = {
    "indknn": {"color": _BLUE, "marker": "o"},
    "indknn_rbf": {"color": _GREEN, "marker": "s"},
    "indknn_gdp": {"color": _BLUE, "marker": "o", "linestyle": ":", "alpha": 0.7},
    "indknn_reuse": {"color": _PURPLE, "marker": "D"},
    "indknn_alone": {"color": _BLUE, "marker": "", "linestyle": "--"},
    "ours": {"color": _BLUE, "marker": ""},
    "votes": {"color": _RED, "marker": ""},
    "sgd": {"color": _GREY, "marker": ""},
    "sgd_retrained": {"color": _GREY, "marker": "", "linestyle": "--"},
    "ceiling": {"color": _GREEN, "marker": "", "linestyle": ":"},
    "ceiling_kernel": {"color": _PURPLE, "marker": "", "linestyle": ":"},
    "model": {"color": _BLUE, "marker": "", "linestyle": ":"},
    "knn": {"color": _ORANGE, "marker": ""},
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
_RC: dict[str, Any] = {
    "font.size": 9, "axes.titlesize": 10, "legend.fontsize": 7.5, "legend.frameon": False,
    "axes.grid": True, "grid.alpha": 0.25, "axes.spines.top": False, "axes.spines.right": False,
    "lines.linewidth": 1.6, "lines.markersize": 5, "svg.fonttype": "none", "svg.hashsalt": "indknn",
}  # fmt: skip


def style_of(role: str) -> dict[str, Any]:
    """The style of a role. Roles `line0`, `line1`, ... have different styles and no other meaning.

    >>> style_of("indknn")["marker"], style_of("line1")["marker"]
    ('o', 's')
    """
    if role.startswith("line"):
        i = int(role.removeprefix("line"))
        return {"color": _LINES[i % len(_LINES)], "marker": _MARKERS[i % len(_MARKERS)]}
    own = {"color": "#2a9fb0", "marker": "*"}  # the user's own method
    return STYLES.get(role, own if role.startswith("own_") else {"color": _GREY, "marker": "."})


def draw(outcome: dict[str, Any], folder: Path) -> list[Path]:
    """Draw the panels of an outcome side by side, as PNG and SVG. Returns no files if there is nothing to draw."""
    panels = outcome["panels"]
    if not panels:
        return []
    try:
        import matplotlib as mpl  # noqa: PLC0415 - an extra
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ModuleNotFoundError:
        raise IndKNNError("pictures need matplotlib: pip install 'indknn[plot]'") from None
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(cast(Any, _RC)):
        figure = Figure(figsize=(_WIDTH * len(panels), _HEIGHT), layout="constrained")
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _panel(axes, panel)
        paths = [folder / f"{outcome['name']}.{suffix}" for suffix in ("png", "svg")]
        figure.savefig(paths[0], dpi=_PNG_DPI, metadata={"Software": None})
        figure.savefig(paths[1], metadata={"Date": None})
    return paths


def _panel(axes: Any, panel: dict[str, Any]) -> None:
    for series in panel["series"]:
        style = style_of(series["role"])
        y = [value if value > 0 else nan for value in series["y"]] if panel["log_y"] else series["y"]
        axes.plot(series["x"], y, label=series["label"], **style)
        if series["low"] is not None:
            axes.fill_between(series["x"], series["low"], series["high"], color=style["color"], alpha=0.1, linewidth=0)
    axes.set(title=fill(panel["title"], _TITLE), xlabel=panel["xlabel"], ylabel=panel["ylabel"])
    axes.set_xscale("log" if panel["log_x"] else "linear")
    axes.set_yscale("log" if panel["log_y"] else "linear")
    short = max(len(series["label"]) for series in panel["series"]) < 34
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2 if short and len(panel["series"]) > 3 else 1)
