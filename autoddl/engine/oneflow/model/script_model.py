"""What generated scripts execute, as planning sees it: OneFlow's eager ops on local tensors.

They know more than an nn.Graph: any number of axes, shares of unlike devices, and strides. They know less
of ops that look at where their shard begins: an engine's global tensors tell these, local ones do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autoddl.engine.model import EngineModel
from autoddl.engine.oneflow.model.engine_model import ONEFLOW, SEPARATE_STREAMS

# By op type the labels (registry.labelled) of cuts along what indices are counted in.
_COUNTED: Mapping[str, frozenset[str]] = {
    "gather": frozenset({"cut d0"}),
    "embedding": frozenset({"cut row"}),
    "dim_gather": frozenset({"cut row"}),
    "nll": frozenset({"cut c"}),
    "one_hot": frozenset({"cut c"}),
}


def _refused() -> Mapping[str, frozenset[str]]:
    known = ONEFLOW.limits.refused
    return {**known, **{t: known.get(t, frozenset()) | labels for t, labels in _COUNTED.items()}}


SCRIPT: EngineModel = replace(
    ONEFLOW,
    name="script",
    title="a generated script",
    limits=ONEFLOW.limits._replace(
        axes=None,
        one_axis=frozenset(),
        refused=_refused(),
        writes_once=frozenset(),
        shares=True,
        clips_stages=False,
        strides=True,
    ),
    # no jobs, which alone have to accumulate on the compute stream
    streams=(SEPARATE_STREAMS._replace(accumulating=SEPARATE_STREAMS.devices),),
    schedule="1f1b",
    rendezvous=True,
    collectives={},  # eager: each by itself
    masks_alike=False,  # each dropout draws on from where the last one has left off
    runs_graphs=False,
)
