"""How far predictions are off, in which order they put rows, and how well training scales.

A frame has a row for each measurement of `cluster_rows.compared`. Two rows of a group that are measured
at 1 and 2 s and predicted at 1.1 and 2.4 s: mean error 15 %, rank correlation of the pace 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from experiments.lib.frames import Row
from experiments.published.published_rows import ONEFLOW

GROUP = ["source", "model", "precision"]


def expressed(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of OneFlow that have a prediction, with the error of each and samples a second.

    `measured_pace` and `predicted_pace` are those of one device.
    """
    mine = frame[(frame.engine == ONEFLOW) & frame.predicted_s.notna()].copy()
    mine["predicted_s"] = mine.predicted_s.astype(float)
    mine["error"] = mine.predicted_s / mine.measured_s - 1
    for what in ("measured", "predicted"):
        mine[f"{what}_pace"] = mine.batch / mine.devices / mine[f"{what}_s"]
    return mine


def errors(mine: pd.DataFrame) -> pd.DataFrame:
    """Return for each group, and for all, how far steps are off.

    `spearman` is the rank correlation of samples a second and device, which a group of one has not.
    """
    groups = [(_name(key), group) for key, group in mine.groupby(GROUP, sort=False)]
    return pd.DataFrame([_errors(name, group) for name, group in [*groups, ("all", mine)]])


def _name(key: Any) -> str:
    return " ".join(map(str, key))


def _errors(name: str, group: pd.DataFrame) -> Row:
    correlation = group.measured_pace.corr(group.predicted_pace, method="spearman")
    return {
        "group": name, "rows": len(group), "mean_error": group.error.abs().mean(),
        "median_error": group.error.abs().median(), "bias": group.error.median(),
        "spearman": correlation if name != "all" else None,
    }  # fmt: skip


def efficiencies(mine: pd.DataFrame) -> pd.DataFrame:
    """Return what share of one device's samples a second each device has of many, data parallel.

    The one device has the same micro-batch where that was measured; `off` is in points.
    """
    return pd.DataFrame(list(_efficiencies(mine[mine.data_parallel])))


def _efficiencies(mine: pd.DataFrame) -> Iterator[Row]:
    for key, group in mine.groupby(GROUP, sort=False):
        alone = group[group.devices == 1]
        for row in group[group.devices > 1].itertuples():
            same = alone[alone.micro_batch == row.micro_batch]
            one = (same if len(same) else alone).iloc[0]
            found = {
                what: getattr(row, f"{what}_pace") / one[f"{what}_pace"]
                for what in ("measured", "predicted")
            }
            yield {
                "group": _name(key), "micro_batch": row.micro_batch,
                "alone_micro_batch": one.micro_batch, "devices": row.devices, **found,
                "off": 100 * (found["predicted"] - found["measured"]),
            }  # fmt: skip
