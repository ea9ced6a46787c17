"""Panels of an outcome as PNG and SVG."""

from __future__ import annotations

from math import nan
from pathlib import Path
from textwrap import fill
from typing import Any, cast

from indknn.errors import IndKNNError
from indknn_lab.plots.style import RC, style_of

_WIDTH, _HEIGHT = 5.2, 4.3
_TITLE = 56  # letters per line
_PNG_DPI = 110


def draw(outcome: dict[str, Any], folder: Path) -> list[Path]:
    """One picture per outcome, its panels side by side: a PNG and an SVG. None where there is nothing to draw."""
    panels = outcome["panels"]
    if not panels:
        return []
    try:
        import matplotlib as mpl  # noqa: PLC0415 - an extra
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ModuleNotFoundError:
        raise IndKNNError("pictures need matplotlib: pip install 'indknn[plot]'") from None
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(cast(Any, RC)):
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
    if panel["log_x"]:
        axes.set_xscale("log")
    if panel["log_y"]:
        axes.set_yscale("log")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=_columns(panel["series"]))


def _columns(series: list[dict[str, Any]]) -> int:
    """Of the legend: two, if there is much to say and it is short."""
    return 2 if len(series) > 3 and max(len(s["label"]) for s in series) < 34 else 1
