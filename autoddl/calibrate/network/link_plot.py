"""Draw measured points against fitted lines: one panel per mode and collective."""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from autoddl.calibrate.network.link_cases import BETWEEN, CollectiveCase, Timing
from autoddl.calibrate.network.link_fits import LinkFits
from autoddl.errors import AutoDDLError

# Okabe and Ito's palette, which colour-blind readers can tell apart, without its yellow.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
_MARKERS = "osD^vP*X"


def available() -> bool:
    return find_spec("matplotlib") is not None


def check_available() -> None:
    """Raise AutoDDLError where nothing can be drawn."""
    if not available():
        raise AutoDDLError(
            "plot: matplotlib is not installed; install it with `pip install 'autoddl[plots]'` "
            "or leave --plot out"
        )


def draw(results: LinkFits, title: str) -> bytes:
    """Return a PNG: message size against seconds, both logarithmic."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    modes = list(dict.fromkeys(row.case.mode for row in results.rows))
    names = list(dict.fromkeys(row.case.collective for row in results.rows))
    kinds = list(dict.fromkeys(_kind(row.case) for row in results.rows))
    figure = Figure(figsize=(3.4 * max(1, len(names)), 3.6 * max(1, len(modes))), dpi=120)
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(modes), len(names), squeeze=False, sharex=True, sharey=True)
    for panel_row, mode in zip(panels, modes, strict=True):
        for panel, name in zip(panel_row, names, strict=True):
            rows = [r for r in results.rows if (r.case.mode, r.case.collective) == (mode, name)]
            panel.set_title(f"{name.replace('_', '-')}, {mode}", fontsize=10)
            for index, kind in enumerate(kinds):
                _line(panel, results, [r for r in rows if _kind(r.case) == kind], index, kind)
        panel_row[0].set_ylabel("time (s)")
    for panel in panels[-1]:
        panel.set_xlabel("message size n (bytes)")
    handles = {
        k: h for p in panels.flat for h, k in zip(*p.get_legend_handles_labels(), strict=True)
    }
    figure.suptitle(f"{title}: measured (points) and fitted (lines)", fontsize=11)
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=3, fontsize=8)
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


def _line(panel: Any, results: LinkFits, rows: Sequence[Timing], index: int, kind: str) -> None:
    """Draw one kind of group: points with their quartile, and the fitted line through them."""
    shown = [row for row in rows if row.seconds > 0]
    if not shown:
        return
    colour, marker = _COLOURS[index % len(_COLOURS)], _MARKERS[index % len(_MARKERS)]
    sizes = [row.size_bytes for row in shown]
    panel.loglog(
        sizes, [row.seconds for row in shown], marker, color=colour, markersize=5, label=kind,
        fillstyle="none" if index >= len(_COLOURS) else "full",
    )  # fmt: skip
    grid = np.geomspace(min(sizes), max(sizes), 41)
    fitted = [results.fitted_s(shown[0].case, n) for n in grid]
    if None not in fitted:
        panel.loglog(grid, fitted, color=colour, linewidth=1)
    panel.grid(visible=True, which="major", linewidth=0.3)


def _kind(case: CollectiveCase) -> str:
    where = f"{case.group_size} ranks"
    if case.inner > 1:
        where = f"{case.group_size // case.inner} nodes × {case.inner} ranks"
    elif case.level == BETWEEN:
        where = f"{case.group_size} nodes, 1 rank each"
    return where + (f", {case.groups} groups at once" if case.groups > 1 else "")
