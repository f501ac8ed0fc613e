"""Chains of boxings and their twins: what fit-network times, as functions of global tensors.

What is measured is what plans execute: boxing inside nn.Graph (or, on request, of eager tensors). One
number takes two programs, the *chain* and its *twin*:

    chain   s -> x·s -> boxing -> one element of it -> s -> x·s -> boxing -> …   (`steps` boxings)
    twin    the same kernels on local tensors of the same size, everything broadcast, no boxing

and is (time of a call of the chain − time of a call of the twin) / `steps`. Each boxing waits for the
one before it, since its input x·s needs an element of the last result; nothing else ties the ranks
together. Feeding and fetching (s has one element), launching the graph, multiplying and picking the
element are in both and drop out. No local step such as B -> P is needed to get back to the first
state: x is in that state which makes x·s the boxing's input again. Along the measured axes:

    collective       x   s   boxing
    all-reduce       P   B   P  -> B
    all-gather       S1  B   S1 -> B
    reduce-scatter   B   P   P  -> S1          (s is summed over the rows, so it is P)
    all-to-all       S1  B   S1 -> S2 -> S1 …  (x <- boxing of x·s)
    send/receive     x goes to other ranks and back: placement to placement, one message per pair

Gathers by shares are those of scripts, of local tensors: x is what each rank has, in the twin as well.

Dim 0 of x counts the groups that work at once: the axis that is not measured cuts it. Both programs
begin with a matrix product that takes some ms (the *padding*), since OneFlow 0.9 crashes where a call
of an nn.Graph ends before it has been put into its queue. A chain must return what it was given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import oneflow as flow

from autoddl.calibrate.network.link_cases import INSIDE, CollectiveCase
from autoddl.engine.oneflow.dialect.runtime import local_model as script
from autoddl.engine.oneflow.probes.rank_groups import RankGrid
from autoddl.engine.oneflow.run.global_tensors import sbp_of
from autoddl.perfmodel.collectives import BROADCAST
from autoddl.sbp.boxing import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER
from autoddl.sbp.state import NdSbp

ITEM_BYTES = 4
_PADDING = 384  # rows and columns of the matrix that is multiplied by itself

Body = Callable[..., Any]
Box = Callable[[Any, str], Any]


@dataclass(frozen=True)
class _States:
    """States of x and s along the measured axes, and the state that the boxing leads to."""

    x: str
    s: str
    target: str


_STATES = {
    ALL_REDUCE: _States(x="P", s="B", target="B"),
    ALL_GATHER: _States(x="S1", s="B", target="B"),
    REDUCE_SCATTER: _States(x="B", s="P", target="S1"),
    ALL_TO_ALL: _States(x="S1", s="B", target="S2"),
}


@dataclass(frozen=True)
class ChainProgram:
    """A function of global tensors and what to call it with; `expected` is what it returns."""

    body: Body
    inputs: tuple[Any, ...]
    expected: Any


def shape_of(case: CollectiveCase) -> tuple[int, int]:
    """Return rows and columns of a group's tensor: about square, divisible by the group.

    n is the local send buffer of an all-to-all, so its tensor is `group_size` times as large.
    """
    if case.paired:
        return near_square(case.size_bytes / ITEM_BYTES, 1)
    share = case.group_size if case.collective == ALL_TO_ALL else 1
    return near_square(case.size_bytes * share / ITEM_BYTES, sum(case.shares) or case.group_size)


def true_size_bytes(case: CollectiveCase) -> float:
    """Return the n (perfmodel.collectives) of the tensor that `shape_of` describes."""
    share = case.group_size if case.collective == ALL_TO_ALL else 1
    size_bytes = math.prod(shape_of(case)) * ITEM_BYTES / share
    if case.shares and case.collective == ALL_GATHER:  # which is padded
        size_bytes *= case.group_size * max(case.shares) / sum(case.shares)
    return size_bytes


def near_square(elements: float, divisor: int) -> tuple[int, int]:
    """Return two multiples of `divisor` whose product is close to `elements`."""
    rows = max(1, round(elements**0.5 / divisor)) * divisor
    columns = max(1, round(elements / rows / divisor)) * divisor
    return rows, columns


def chain(case: CollectiveCase, cluster: RankGrid) -> ChainProgram:
    if case.shares:
        return _by_shares(case, cluster, gathers=True)
    made = _round_trip(case, cluster) if case.paired else _collective(case, cluster)
    return _beside_others(made, cluster.bystanders(case))


def twin_key(case: CollectiveCase, cluster: RankGrid) -> tuple[Any, ...]:
    """Return what two cases must agree in to share one twin."""
    workers = cluster.workers(case)
    size = round(math.log2(_local_elements(case)))
    return (workers, _repeats_x(case), size, case.steps, case.shares)


def twin(case: CollectiveCase, cluster: RankGrid) -> ChainProgram:
    """Return the twin of a case: the kernels that its chain runs in turn, on as many ranks."""
    if case.shares:
        return _by_shares(case, cluster, gathers=False)
    mesh = flow.placement("cpu", list(cluster.workers(case)))
    rows, columns = near_square(_local_elements(case), 1)
    x = _full((1, rows, columns), 1.0 / rows, mesh, ("B",))
    s, w = _full((1, 1, 1), 1.0, mesh, ("B",)), _padding(mesh)
    inner = _exchange(case.steps) if _repeats_x(case) else _relay(case.steps, "B")

    def body(x: Any, s: Any, w: Any) -> Any:
        return inner(x, _padded(s, w), lambda tensor, state: tensor)

    made = ChainProgram(body, (x, s, w), x if _repeats_x(case) else s)
    return _beside_others(made, cluster.bystanders(case))


def _repeats_x(case: CollectiveCase) -> bool:
    """Tell whether each boxing's result is the next one's input."""
    return case.paired or case.collective == ALL_TO_ALL


def _beside_others(program: ChainProgram, bystanders: Sequence[int]) -> ChainProgram:
    """Give the ranks that take no part in `program` a padding too: they call it as well."""
    if not bystanders:
        return program
    w = _padding(flow.placement("cpu", list(bystanders)))
    body = program.body

    def both(w: Any, *inputs: Any) -> tuple[Any, Any]:
        return body(*inputs), flow.matmul(w, w)

    return ChainProgram(both, (w, *program.inputs), program.expected)


def _local_elements(case: CollectiveCase) -> int:
    if case.shares:
        return math.prod(shape_of(case)) * max(case.shares) // sum(case.shares)
    cut = not case.paired and _STATES[case.collective].x == "S1"
    return math.prod(shape_of(case)) // (case.group_size if cut else 1)


def _collective(case: CollectiveCase, cluster: RankGrid) -> ChainProgram:
    states = _STATES[case.collective]
    rows, columns = shape_of(case)
    mesh = flow.placement("cpu", cluster.mesh(case).tolist())
    measured = cluster.measured_axes(case)
    groups = cluster.mesh(case).size // case.group_size

    def nd(state: str) -> tuple[str, ...]:
        return tuple(state if on else "S0" for on in measured)

    x = _full((groups, rows, columns), 1.0 / rows, mesh, nd(states.x))
    s = _full((groups, 1, 1), 1.0, mesh, nd(states.s))
    inner = (
        _exchange(case.steps)
        if case.collective == ALL_TO_ALL
        else _relay(case.steps, states.target)
    )

    def body(x: Any, s: Any, w: Any) -> Any:
        return inner(x, _padded(s, w), lambda tensor, state: _box(tensor, mesh, nd(state)))

    return ChainProgram(body, (x, s, _padding(mesh)), x if case.collective == ALL_TO_ALL else s)


def _by_shares(case: CollectiveCase, cluster: RankGrid, *, gathers: bool) -> ChainProgram:
    """Return the chain of gathers by shares as scripts do them, of local tensors, or its twin."""
    axis, rank = int(case.level == INSIDE), flow.env.get_rank()
    script.RANKS = cluster.ranks.tolist()
    script.SHARES = [
        case.shares if i == axis else (1,) * n for i, n in enumerate(cluster.ranks.shape)
    ]
    script.PLACE = tuple(int(x[0]) for x in np.nonzero(cluster.ranks == rank))
    script.GROUPS = script.groups(script.RANKS)
    rows, columns = shape_of(case)
    mesh = flow.placement("cpu", cluster.ranks.ravel().tolist())
    x = flow.full((1, rows, script.own(columns, axis)), 1.0 / rows)
    w = flow.full((1, _PADDING, _PADDING), _PADDING**-0.5)
    s, inner = _full((1, 1, 1), 1.0, mesh, ("B",)), _relay(case.steps, "B")
    grouped = case.collective == BROADCAST

    def box(tensor: Any, state: str) -> Any:
        return script.gathered(tensor, axis, 2, grouped) if gathers else tensor

    def body(x: Any, s: Any, w: Any) -> Any:
        return _box(inner(x, _padded(s.to_local(), w), box), mesh, ("B",))

    return ChainProgram(body, (x, s, w), s)


def _round_trip(case: CollectiveCase, cluster: RankGrid) -> ChainProgram:
    """Send x to the partners and back, `steps` messages in all; dim 0 has a row for each pair.

    Senders and receivers multiply in turn, hence a twin on the senders alone.
    """
    senders, receivers = cluster.pairs(case)
    here, there = (flow.placement("cpu", side.tolist()) for side in (senders, receivers))
    rows, columns = shape_of(case)
    x = _full((len(senders), rows, columns), 1.0 / rows, here, ("S0",))
    ones = [_full((len(senders), 1, 1), 1.0, mesh, ("S0",)) for mesh in (here, there)]

    def body(x: Any, s: Any, t: Any, w: Any) -> Any:
        s = _padded(s, w)
        for _ in range(case.steps // 2):
            x = _box(x * s, there, ("S0",))
            x = _box(x * t, here, ("S0",))
        return x

    return ChainProgram(body, (x, *ones, _padding(here)), x)


def _relay(steps: int, target: str) -> Callable[[Any, Any, Box], Any]:
    """Chain boxings of x·s through one element per row of each result, summed to the next s."""

    def body(x: Any, s: Any, box: Box) -> Any:
        for _ in range(steps):
            s = box(x * s, target)[:, :, :1].sum(1, keepdim=True)
        return s

    return body


def _exchange(steps: int) -> Callable[[Any, Any, Box], Any]:
    """Chain all-to-alls back and forth."""

    def body(x: Any, s: Any, box: Box) -> Any:
        for step in range(steps):
            x = box(x * s, "S1" if step % 2 else "S2")
        return x

    return body


def _padding(mesh: Any) -> Any:
    """Return a matrix whose square consists of ones."""
    value = _PADDING**-0.5
    return _full((1, _PADDING, _PADDING), value, mesh, ("B",) * len(mesh.ranks.shape))


def _padded(s: Any, w: Any) -> Any:
    return s * flow.matmul(w, w)[:, :1, :1]


def _box(tensor: Any, mesh: Any, states: Sequence[str]) -> Any:
    return tensor.to_global(placement=mesh, sbp=sbp_of(NdSbp.parse(",".join(states))))


def _full(shape: Sequence[int], value: float, mesh: Any, states: Sequence[str]) -> Any:
    whole = [flow.sbp.broadcast] * len(mesh.ranks.shape)
    return _box(flow.full(shape, value, placement=mesh, sbp=whole), mesh, states)


def check_unchanged(collective: str, result: Any, expected: Any) -> None:
    """Make sure that a program returned what it was given; to be called on every rank.

    Raises:
        RuntimeError: it did not.
    """
    result = result[0] if isinstance(result, tuple) else result
    mesh = expected.placement
    whole = [flow.sbp.broadcast] * len(mesh.ranks.shape)
    tensors = [t.to_global(placement=mesh, sbp=whole).to_local() for t in (result, expected)]
    if flow.env.get_rank() not in np.ravel(mesh.ranks):
        return
    got, sent = (tensor.numpy() for tensor in tensors)
    if not np.allclose(got, sent, rtol=1e-3):
        raise RuntimeError(
            f"a chain of {collective} turned {sent.flat[0]} into {got.flat[0]}: the engine's "
            "boxing is wrong; report it with the versions of OneFlow and autoddl"
        )
