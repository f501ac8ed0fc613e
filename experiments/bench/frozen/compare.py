"""Figures beside those that are kept: the same, better, worse, or another plan of the same cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

SAME, BETTER, OTHER, WORSE = "same", "better", "other", "DIFFERS"
LEVEL = 1e-9  # relative; costs within it are equal
LESS, MORE, EQUAL, NOTED, SECONDS, ERROR = "less", "more", "equal", "noted", "seconds", "error"
KINDS = {
    figure: kind
    for kind, figures in {
        EQUAL: "fingerprint,devices,plans,baselines: oneflow,baselines: predicted",
        NOTED: "memory_bytes,idle_s,mesh,solver,states,spans,lines,script",
        LESS: "cost_s,step_s,end_s,gap",
        MORE: "lower_bound_s",
        ERROR: "mean_error,worst_error",
        SECONDS: "seconds",
    }.items()
    for figure in figures.split(",")
}
"""What may become of a figure: whether less or more is better; a noted one may change."""
_TEXTS = ("fingerprint", "mesh", "solver", "states", "script")
ERRORS = 0.005  # by so much relative errors of memory may rise: which plans are drawn may change


def kind_of(figure: str) -> str:
    """Return the kind of a figure; a baseline's is that of what is behind its name."""
    name = figure if figure in KINDS else figure.rpartition(": ")[2]
    return KINDS[name]


def verdict(figure: str, kept: Any, now: Any, loose: float = 0.0) -> str:
    """Say how a figure compares with the one that is kept.

    By `loose` costs may be off, relatively: where the time ended a search.
    """
    kind = kind_of(figure)
    if kept == now or kind == SECONDS:
        return SAME
    if kind in (EQUAL, NOTED):
        return WORSE if kind == EQUAL else OTHER
    old, new = float(kept), float(now)
    if kind == ERROR:
        return SAME if new <= old + ERRORS else WORSE
    scale = 1.0 if figure == "gap" else abs(old)
    more = (new - old) * (1 if kind == LESS else -1)
    if abs(more) <= LEVEL * scale:
        return SAME
    if more < 0:
        return BETTER
    return OTHER if loose > LEVEL and more <= loose * scale else WORSE


def compared(
    kept: Mapping[str, Any], now: Mapping[str, Any], loose: float | None = None
) -> Iterator[tuple[str, Any, Any, str]]:
    """Yield (figure, kept, now, verdict) of a case; what is missing on one side differs.

    Without `loose` costs may be off by the kept gap, relatively.
    """
    if "error" in now:
        yield "error", kept.get("error"), now["error"], WORSE
        return
    loose = float(kept.get("gap", 0.0)) if loose is None else loose
    for figure in dict.fromkeys((*kept, *now)):
        if figure not in kept or figure not in now:
            if kind_of(figure) != SECONDS:
                yield figure, kept.get(figure), now.get(figure), WORSE
            continue
        yield figure, kept[figure], now[figure], verdict(figure, kept[figure], now[figure], loose)


def read(file: Any) -> dict[str, dict[str, Any]]:
    """Return the figures by case of a record: a CSV of case, figure, value."""
    frame = pd.read_csv(file, dtype=str, keep_default_na=False)
    found: dict[str, dict[str, Any]] = {}
    for case, figure, value in frame.itertuples(index=False):
        found.setdefault(case, {})[figure] = _value(figure, value)
    return found


def write(file: Any, record: Mapping[str, Mapping[str, Any]]) -> None:
    """Write a record, numbers with all their digits."""
    rows = [(c, figure, repr(v) if isinstance(v, float) else str(v))
            for c, figures in record.items() for figure, v in figures.items()]  # fmt: skip
    pd.DataFrame(rows, columns=["case", "figure", "value"]).to_csv(file, index=False)


def _value(figure: str, text: str) -> Any:
    if kind_of(figure) in (LESS, MORE, ERROR, SECONDS) or figure == "idle_s":
        return float(text)
    return int(text) if text.isdecimal() and figure not in _TEXTS else text
