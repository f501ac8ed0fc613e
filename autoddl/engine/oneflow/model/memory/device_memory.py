"""Memory of one device in bytes: what OneFlow allocates for a planned program on CUDA devices.

`estimate` follows OneFlow's own algorithms: the tasks of a rank with the buffers of its boxings
(lowering.py), the order in which they run (execution_order.py), what overlaps in memory (liveness.py,
allocation.py). Not counted is what no plan tells: the context of the device, the workspaces of cuDNN
and cuBLAS, buffers of NCCL.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from autoddl.engine.model import MemoryCourse, MemoryEstimate
from autoddl.engine.oneflow.model.memory.liveness import blocks, course
from autoddl.engine.oneflow.model.memory.lowering import never_reused_bytes, rank_tasks
from autoddl.engine.oneflow.model.memory.sizes import LocalSizes
from autoddl.engine.oneflow.model.memory.task_graph import BOXING, KINDS, Buffers, Ints, RankTasks
from autoddl.engine.oneflow.model.rewrites.clipped_gradients import chained
from autoddl.engine.oneflow.model.rewrites.gradient_accumulation import (
    BUFFER,
    SUM,
    buffered,
    summed,
)
from autoddl.sbp.layout import Layout
from autoddl.sbp.program import Program
from autoddl.sbp.rewrites.recomputation import can_repeat, recomputed
from autoddl.sbp.rewrites.stage_program import CROSSING
from autoddl.sbp.shares import Cut, Cuts
from autoddl.sbp.state import NdSbp

_PARTS = {"parameter": 0, "buffer": 0, "state": 2, "boxing": 4, "workspace": 4, "output": 4}
_FIELDS = ("parameters", "gradients", "optimizer_states", "activations_peak", "buffers")
_GRADIENTS, _ACTIVATIONS = 1, 3
_NONE = np.zeros(0, dtype=np.int64)
_PART = np.array([_PARTS.get(kind, _ACTIVATIONS) for kind in KINDS])


class OneFlowMemory:
    """See `engine.model.StepMemory`: what is the same for all layouts of a program is computed once."""

    def __init__(self, program: Program, mesh: tuple[Cut, ...]) -> None:
        self.sizes = LocalSizes(program, mesh)

    def estimate(self, layout: Layout, *, compute_stream: bool) -> MemoryEstimate:
        cuts = self.sizes.cuts
        return estimate(cuts, layout, sizes=self.sizes, compute_stream=compute_stream)

    def course(self, layout: Layout, *, compute_stream: bool) -> MemoryCourse:
        layout, mesh = chained(layout), self.sizes.mesh
        sizes = self.sizes
        if sizes.program is not layout.program:
            sizes = LocalSizes(layout.program, sizes.cuts)

        def needs(place: Sequence[int]) -> int:
            return rank_estimate(
                mesh, layout, coords=place, compute_stream=compute_stream, sizes=sizes
            ).total

        place = max(_places(mesh, layout), key=needs)
        rank = rank_tasks(
            mesh, layout, place, sizes=sizes, compute_stream=compute_stream, logical_chains=False
        )
        return _course(rank, layout.program)

    def never_reused_bytes(self, layout: Layout) -> int:
        return never_reused_bytes(self.sizes.mesh, layout, self.sizes)


def estimate(
    cuts: Cuts,
    layout: Layout,
    *,
    micro_batches: int = 1,
    in_flight: int = 1,
    recompute: Collection[str] = (),
    compute_stream: bool = False,
    logical_chains: bool = True,
    sizes: LocalSizes | None = None,
) -> MemoryEstimate:
    """Return the memory of the device that needs most.

    Args:
        cuts: of the mesh.
        layout: the state of every tensor of one training step; with micro-batches, of one of them.
        micro_batches: so many add up their gradients before the update, and the inputs of all are in
            memory.
        in_flight: of so many micro-batches the forward pass is done and the backward pass is not (a
            stage of a pipeline): buffers hold what the backward pass reads of all but the newest.
        recompute: names of forward results that are dropped and made again for the backward pass
            (activation checkpointing); programs that were captured with it do so already.
        compute_stream: boxings are ops of the compute stream, so that their results are reused; with
            micro-batches they always are.
        logical_chains: with micro-batches OneFlow joins ops to chains before it lowers them (see
            liveness.py).
        sizes: those of another layout of the program, if there was one.
    """
    layout = recomputed(layout, recompute)
    accumulates = micro_batches > 1
    if accumulates:
        layout = summed(layout)
    if in_flight > 1:
        layout = buffered(layout)
    layout = chained(layout)
    if sizes is None or sizes.program is not layout.program:
        sizes = LocalSizes(layout.program, cuts)
    found = [
        rank_estimate(
            sizes.mesh, layout, coords=place, micro_batches=micro_batches, in_flight=in_flight,
            compute_stream=compute_stream or accumulates, logical_chains=logical_chains and accumulates,
            sizes=sizes,
        )
        for place in _places(sizes.mesh, layout)
    ]  # fmt: skip
    return max(found, key=lambda memory: memory.total)


def stage_memory(
    cuts: Cuts,
    stage: Layout,
    *,
    micro_batches: int,
    in_flight: int,
    recompute: bool = False,
    joined: bool = True,
) -> MemoryEstimate:
    """Return the memory of the device of a stage that needs most; see `estimate`.

    With `recompute` the backward pass makes all forward results of the stage again; ops of stages that
    are `joined` are in logical chains.
    """
    names = [
        name
        for op in stage.program.ops
        if op.phase == "forward" and op.type not in CROSSING and can_repeat(op)
        for _, name in op.outputs
    ]
    return estimate(
        cuts, stage, micro_batches=micro_batches, in_flight=in_flight,
        recompute=names if recompute else (), logical_chains=joined,
    )  # fmt: skip


def rank_estimate(
    mesh: Sequence[int],
    layout: Layout,
    *,
    coords: Sequence[int],
    micro_batches: int = 1,
    in_flight: int = 1,
    compute_stream: bool = False,
    logical_chains: bool = False,
    sizes: LocalSizes | None = None,
) -> MemoryEstimate:
    """Return the memory of the device at mesh coordinates `coords`; see `estimate`."""
    program = layout.program
    rank = rank_tasks(
        mesh, layout, coords, sizes=sizes, compute_stream=compute_stream,
        logical_chains=logical_chains,
    )  # fmt: skip
    found, buffers = blocks(rank), rank.buffers
    again = np.concatenate((
        _waiting(rank, program, micro_batches) if micro_batches > 1 else _NONE,
        _more_in_flight(rank, program, in_flight) if in_flight > 2 else _NONE,
    ))  # fmt: skip
    alive = np.concatenate((found.alive.items, again))
    names, held, number = buffers.name[alive], buffers.size[alive], program.columns.number
    part = _part_of(buffers, program)[alive]
    parts = np.bincount(part, held, minlength=5).astype(np.int64)
    parts[-1] += found.size.sum() + held[len(alive) - len(again) :].sum() - held.sum()  # gaps
    by_size = (-held).argsort(kind="stable")
    total = parts.tolist()
    name_of = [*number, *program.columns.place]
    largest_first = zip(
        [name_of[n] for n in names[by_size].tolist()], held[by_size].tolist(), strict=True
    )
    return MemoryEstimate(total[0], total[1], total[2], total[3], total[4], tuple(largest_first))


def _part_of(buffers: Buffers, program: Program) -> Ints:
    """Return for every buffer the place of its part among the fields of MemoryEstimate."""
    number, part = program.columns.number, _PART[buffers.kind]
    gradient = np.zeros(len(number) + len(program.ops), dtype=np.bool_)
    gradient[[number[p.gradient] for p in program.parameters if p.gradient]] = True
    gradient[[n for name, n in number.items() if name.startswith(f"{SUM} ")]] = True
    part[gradient[buffers.name] & (buffers.kind != BOXING)] = _GRADIENTS
    return part


def _course(rank: RankTasks, program: Program) -> MemoryCourse:
    """Return what of the buffers of a rank is in memory while each of its tasks runs."""
    found, buffers, count = course(rank), rank.buffers, len(rank.tasks)
    part, size = _part_of(buffers, program)[found.buffer], buffers.size[found.buffer]
    changes = np.zeros((len(_FIELDS), count + 1), dtype=np.int64)
    np.add.at(changes, (part, found.begin), size)
    np.add.at(changes, (part, found.end + 1), -size)
    held = changes.cumsum(axis=1)[:, :-1]
    maker = np.append(program.columns.maker, np.arange(len(program.ops)))[buffers.name]
    back = np.array([op.phase == "backward" for op in program.ops], dtype=np.bool_)
    late = np.zeros(count + 1, dtype=np.bool_)
    late[buffers.producer[(maker >= 0) & back[maker]]] = True
    backward = np.append(late[found.order], True).argmax()
    parts = {name: tuple(row.tolist()) for name, row in zip(_FIELDS, held, strict=True)}
    return MemoryCourse(parts, int(backward))


def _places(mesh: Sequence[int], layout: Layout) -> Collection[tuple[int, ...]]:
    """Return the coordinates of one rank of each kind.

    Ranks differ where B becomes P: the first device of the axes keeps the value (see rank_tasks).
    """
    turned = {
        axes
        for before, after in _made_partial(layout)
        if (axes := tuple(i for i, n in enumerate(mesh) if n > 1 and before[i] != after[i]))
        and all(after[i].is_partial for i in axes)
    }
    if not turned:
        return [tuple(min(1, size - 1) for size in mesh)]
    kinds: dict[tuple[bool, ...], tuple[int, ...]] = {}
    for place in itertools.product(*(range(min(2, size)) for size in mesh)):
        kept = tuple(all(place[axis] == 0 for axis in axes) for axes in turned)
        kinds.setdefault(kept, place)
    return kinds.values()


def _made_partial(layout: Layout) -> Iterator[tuple[NdSbp, NdSbp]]:
    """Yield the states before and after each boxing that may make partial sums; equal ones once."""
    moves = layout.moves
    partial = [any(sbp.is_partial for state in path for sbp in state) for path in moves.paths]
    rows = np.flatnonzero(np.array(partial, dtype=np.bool_)[moves.path])
    pairs = zip(moves.tensor[rows].tolist(), moves.path[rows].tolist(), strict=True)
    found = [(layout.state(tensor), path) for tensor, path in pairs]
    once = {(id(state), path): (state, moves.paths[path]) for state, path in found}
    for state, states in once.values():
        for before, after in itertools.pairwise((state, *states) if state is not None else ()):
            yield before.executed, after.executed


def _waiting(rank: RankTasks, program: Program, micro_batches: int) -> Ints:
    """Return the inputs of all micro-batches: that of the one that runs is cut out of them."""
    buffers, number = rank.buffers, program.columns.number
    inputs = np.isin(buffers.name, [number[name] for name in program.inputs])
    own = (buffers.origin == np.arange(len(buffers))) & (buffers.kind < BOXING)
    return np.flatnonzero(inputs & own).repeat(micro_batches)


def _more_in_flight(rank: RankTasks, program: Program, in_flight: int) -> Ints:
    """Return what buffers hold of all micro-batches in flight but the newest, and one more."""
    buffers, number = rank.buffers, program.columns.number
    copies = np.isin(buffers.name, [n for t, n in number.items() if t.startswith(f"{BUFFER} ")])
    held = copies & ~rank.tasks.merged[buffers.producer]
    return np.flatnonzero(held).repeat(in_flight - 2)
