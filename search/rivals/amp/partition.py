"""AMP's cut of a chain of layers into stages on unlike devices: its dynamic program.

    T = (gas − 1) · max t_i + Σ t_i + Σ e_i

for gas micro-batches, t_i the seconds of stage i per micro-batch, e_i those of the transfer behind it.
g[i][j][m] is the least cost of the first i layers on the first j stages if a stage of m seconds comes
later, which pays (gas − 1)·m itself:

    g[i][1][m] = (gas − 1)·max(0, t − m) + t
    g[i][j][m] = min over i′ < i of g[i′][j−1][max(t₂, m)] + (gas − 1)·max(0, t₂ − m) + t₂ + e_{i′}

and the answer is g[L][pp][0]; m runs over the seconds of all contiguous layers on all stages, but only
over those that the longest stage of the best cut can have, of which the least is for 0: some stage has
the dearest layer, and no stage takes gas times as long as a known cut does.

Layers of 3, 1, 2 and 2 s, two equal stages, 4 micro-batches, no transfers: [0, 2, 4], 3·4 + 8 = 20 s.

Source: AMP (Li et al., NeurIPS 2022), supplement §6.4, eq. 10–14.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from autoddl.compiled import compiled
from autoddl.errors import AutoDDLError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
ROUNDING = 1e-9


def pipeline_s(
    bounds: Sequence[int], seconds: Floats, transfer_s: Floats, micro_batches: int
) -> float:
    """Return T of a cut: stage j has the layers from bounds[j] to before bounds[j + 1].

    `seconds` are those of each layer (column) on each stage (row) for one micro-batch, `transfer_s` those
    behind each layer but the last (column) if a stage (row, but the last) ends there.
    """
    stages = [float(row[a:b].sum()) for row, (a, b) in zip(seconds, pairwise(bounds), strict=True)]
    moved = sum(float(row[b - 1]) for row, b in zip(transfer_s, bounds[1:-1], strict=True))
    return (micro_batches - 1) * max(stages) + sum(stages) + moved


def partition(seconds: Floats, transfer_s: Floats, micro_batches: int) -> tuple[int, ...]:
    """Return the bounds of the best cut into one stage for each row of `seconds`; see `pipeline_s`.

    Raises:
        AutoDDLError: fewer layers than stages.
    """
    stages, layers = seconds.shape
    if layers < stages:
        raise AutoDDLError(
            f"pipeline of {stages} stages: {layers} layers; give at least one for each stage"
        )
    ends = np.zeros((stages, layers + 1))
    ends[:, 1:] = seconds.cumsum(axis=1)
    spans = ends[:, None, :] - ends[:, :, None]  # [stage, from, to]
    later = max(micro_batches - 1, 0)
    even = [layers * stage // stages for stage in range(stages + 1)]
    known_s = pipeline_s(even, seconds, transfer_s, micro_batches)
    low, high = float(seconds.min(axis=0).max()), known_s / max(micro_batches, 1)
    low, high = low * (1 - ROUNDING), high * (1 + ROUNDING)
    tried = spans[(spans > low) & (spans <= high)] if later else np.zeros(0)
    longest = np.unique(np.append(tried, low))
    cut = _cuts(spans, transfer_s, longest, later)
    bounds, end, most = [layers], layers, 0
    for stage in range(stages - 1, 0, -1):
        start = int(cut[stage, end, most])
        place = int(np.searchsorted(longest, spans[stage, start, end]))
        most = max(most, min(place, len(longest) - 1))
        bounds.append(start)
        end = start
    return (0, *reversed(bounds))


@compiled
def _cuts(spans: Floats, transfer_s: Floats, longest: Floats, later: int) -> Ints:
    """Return where the last of each number of stages begins (row), by its end and the place of m."""
    stages, places, _ = spans.shape
    cost = np.full((places, len(longest)), np.inf)
    cut = np.zeros((stages, places, len(longest)), dtype=np.int64)
    for end in range(1, places):
        span = spans[0, 0, end]
        if later and span > longest[-1]:
            break
        cost[end] = later * np.maximum(span - longest, 0.0) + span
    for stage in range(1, stages):
        before, cost = cost, np.full((places, len(longest)), np.inf)
        for end in range(stage + 1, places):
            for start in range(stage, end):
                span = spans[stage, start, end]
                if later and span > longest[-1]:
                    continue
                moved = transfer_s[stage - 1, start - 1]
                place = min(np.searchsorted(longest, span), len(longest) - 1)
                for m in range(len(longest)):
                    own = later * max(span - longest[m], 0.0) + span
                    value = before[start, max(place, m)] + own + moved
                    if value < cost[end, m]:
                        cost[end, m] = value
                        cut[stage, end, m] = start
    return cut
