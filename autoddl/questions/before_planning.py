"""What users ask before they have a plan: `what_if` compares variants, `fit` finds a cluster or batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from autoddl.api import Plan
from autoddl.api.asked_plan import AskedPlan, asked_of
from autoddl.calls import callback, reported
from autoddl.engine import engines
from autoddl.engine.engines import ONEFLOW
from autoddl.errors import AutoDDLError, near, shown
from autoddl.sbp.program import Program
from autoddl.search.budget import Budget
from autoddl.terminal.status_line import working

if TYPE_CHECKING:
    from autoddl.compare.variants import Variant
    from autoddl.planner.plan_options import Options
    from autoddl.planner.request import Request
    from autoddl.report.comparison_text import ShownFit, ShownWhatIf


@reported("what_if")
def what_if(
    graph: Any,
    *inputs: Any,
    mesh: Any = None,
    memory: Any = None,
    links: Mapping[str, float] | Sequence[Mapping[str, float]] | None = None,
    device: float | Sequence[float] | None = None,
    batch: int | Sequence[int] | None = None,
    product: bool = False,
    budget: float | Budget = 5.0,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> ShownWhatIf:
    """Plan a training step as it is and with other links, devices, memory, meshes or batches.

    Args:
        graph, inputs: as for `optimize`.
        mesh: that of the base; of a list the first is the base's, unless there is a `cluster`, and each
            other one is a variant.
        memory: bytes per device of the base and all variants, as for `optimize`; each of a list is a
            variant, beside a base with the profile's.
        links: factors of the bandwidth by level of links, {"node": 2.0}: β is divided by them, α stays;
            {"node.latency": 0.5} multiplies α. Each of a list is a variant.
        device: factors of flop/s and bytes/s of all devices, whose memory stays.
        batch: samples; the program is made from that of the base.
        product: whether variants are all combinations of these values, not each alone.
        budget: seconds for each variant, or a `Budget`.
        progress: called with the name of each variant before it is planned.
        options: others of `optimize`.

    Each variant is what `optimize` finds with the same options and budget. One that does not fit into
    memory is a row that says so. Only one process plans: in launched ranks each does so by itself.

    Raises:
        AutoDDLError: in one line, what is wrong and what to do.
    """
    from autoddl.compare import variants
    from autoddl.report.comparison_text import ShownWhatIf

    meshes, several = _listed(mesh), isinstance(memory, list | tuple)
    clustered = options.get("cluster") is not None
    base = meshes[0] if meshes and not clustered else None
    given = {
        **options, "mesh": base, "memory": None if several else memory, "budget": budget,
    }  # fmt: skip
    asked, read = _compared("what_if", graph, inputs, given)
    axes = {
        "links": links, "device": device, "memory": memory if several else None,
        "mesh": meshes if clustered else meshes[1:], "batch": batch,
    }  # fmt: skip
    with working("planning") as word:
        tell = word if progress is None else callback(progress)
        found = variants.what_if(
            asked.program, asked.options, read, axes, product=product, tell=tell
        )
    return ShownWhatIf.of(replace(found, variants=tuple(map(_usable, found.variants))))


@reported("fit")
def fit(
    graph: Any,
    *inputs: Any,
    step: str | float | None = None,
    throughput: float | None = None,
    batch: str | None = None,
    clusters: Sequence[Any] | None = None,
    node_size: int = 8,
    most: int = 64,
    budget: float | Budget = 5.0,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> ShownFit:
    """Find the smallest cluster, or the largest batch, whose best plan keeps to a time and to memory.

    Args:
        graph, inputs: as for `optimize`.
        step: the most that a step may take, "100ms" or in seconds.
        throughput: the fewest samples per second.
        batch: "largest" looks for the largest batch on the `mesh` or `cluster` among the options, else it
            is the smallest cluster that is looked for.
        clusters: those that are tried, ["1x4", "2x8"]; without them 1, 2, 4, … devices up to `most`, in
            nodes of `node_size`.
        budget: seconds for each plan, or a `Budget`.
        progress: called with the name of what is planned, before it is.
        options: others of `optimize`.

    Raises:
        AutoDDLError: in one line, what is wrong and what to do.
    """
    from autoddl.compare import within_target
    from autoddl.report.comparison_text import ShownFit

    if batch not in (None, within_target.LARGEST):
        raise AutoDDLError(
            f"batch: got {shown(batch, 100)}; allowed is {within_target.LARGEST!r}, or leave it out for "
            "the smallest cluster"
        )
    target = within_target.target_of(step, throughput)
    found = within_target.clusters_of(node_size, most) if clusters is None else clusters
    asked, read = _compared("fit", graph, inputs, {**options, "budget": budget})
    with working("planning") as word:
        tell = word if progress is None else callback(progress)
        given = asked.program, asked.options, read, target
        if batch is None:
            told = within_target.smallest_cluster(*given, found, tell=tell)
        else:
            told = within_target.largest_batch(*given, tell=tell)
    best = None if told.best is None else _usable(told.best)
    return ShownFit.of(replace(told, tried=tuple(map(_usable, told.tried)), best=best))


def _usable(variant: Variant) -> Variant:
    """Return a variant whose plan has the methods that users call."""
    return variant if variant.plan is None else replace(variant, plan=Plan.of(variant.plan))


def _listed(value: Any) -> list[Any]:
    """Return the values of a list, or the one value; (2, 4) is one mesh."""
    if value is None:
        return []
    tuples = isinstance(value, tuple) and all(isinstance(each, int) for each in value)
    return list(value) if isinstance(value, list | tuple) and not tuples else [value]


def _compared(
    what: str, graph: Any, inputs: Sequence[Any], given: Mapping[str, Any]
) -> tuple[AskedPlan, Callable[[Program, Options], Request]]:
    """Return what is asked for, and what reads other programs and options in its place."""
    from autoddl.planner.plan_options import Options

    names = [*(each.name for each in fields(Options) if each.name != "progress"), "engine"]
    for word in given:
        if word not in names:
            raise AutoDDLError(f"{what}: got {shown(word)}, which is no option{near(word, names)}")
    asked = asked_of(graph, inputs, {}, given)
    model = engines.model(given.get("engine", ONEFLOW))
    return asked, lambda program, options: asked.request(model, program, options)
