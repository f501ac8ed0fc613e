"""Figures: drawn without a screen, in colours that all can tell apart, saved as PNG and SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Of Okabe and Ito."""
# What tells curves and points apart where there are no colours.
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
MARKS = ("o", "s", "^", "D", "v", "P")


def curve(number: int) -> dict[str, Any]:
    """Return the colour and dashes of a curve, unlike those of 35 others."""
    count = len(COLOURS)
    dashes = DASHES[(number + number // count) % count]
    return {"color": COLOURS[number % count], "linestyle": dashes}


def panels(rows: int = 1, columns: int = 1, size: tuple[float, float] = (4.2, 3.9)) -> Any:
    """Return a figure and its axes by row and column; `size` in inches is that of each."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(
        rows, columns, figsize=(size[0] * columns, size[1] * rows), squeeze=False,
        layout="constrained",
    )  # fmt: skip


def save(figure: Any, file: Path) -> None:
    """Write a figure as FILE.png and FILE.svg."""
    from matplotlib import pyplot

    for suffix in (".png", ".svg"):
        figure.savefig(file.with_suffix(suffix), dpi=150)
    pyplot.close(figure)
    print(f"wrote {file.with_suffix('.png')}, {file.with_suffix('.svg').name}")


def against(
    axis: Any, frame: pd.DataFrame, measured: str, predicted: str, by: Sequence[str], band: float
) -> None:
    """Draw predicted against measured values, both logarithmic, with a grey band about equality."""
    from matplotlib.ticker import LogLocator, NullFormatter

    if frame.empty:
        return
    for number, (name, group) in enumerate(frame.groupby(list(by), sort=False)):
        label = " ".join(map(str, name))
        colour, mark = COLOURS[number % len(COLOURS)], MARKS[number % len(MARKS)]
        axis.scatter(
            group[measured],
            group[predicted],
            s=18,
            alpha=0.8,
            color=colour,
            marker=mark,
            label=label,
        )
    values = frame[[measured, predicted]].to_numpy()
    ends = [0.8 * values.min(), 1.25 * values.max()]
    axis.plot(ends, ends, color="black", linewidth=0.8)
    low, high = ([end * (1 + side * band) for end in ends] for side in (-1, 1))
    axis.fill_between(ends, low, high, color="0.9", zorder=0)
    axis.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    for each in (axis.xaxis, axis.yaxis):  # less than a decade has no tick with a label by default
        each.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        each.set_major_formatter("{x:g}")
        each.set_minor_formatter(NullFormatter())
    axis.legend(frameon=False)
