"""Equal stages that are no contiguous cut: the integer program of perfmodel.pipeline.free_stages.

Its nodes are the positions of the forward pass, the inputs, and those ops of the backward pass that stand
at another forward op in another order of capture: a sum of two branches' gradients is in the first stage
that has one of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np

from autoddl.perfmodel.pipeline.free_stages import HighsLimits, fastest
from autoddl.perfmodel.pipeline.placed_cut import NO_LIMIT
from autoddl.perfmodel.pipeline.stage_graph import SentTensor, StageGraph, orders
from autoddl.planner.stages.stage_links import Links
from autoddl.planner.stages.stage_pins import StagePins
from autoddl.planner.stages.staged_assignment import Staged
from autoddl.planner.stages.unit_costs import UnitCosts
from autoddl.planner.whole.assigned import Assigned
from autoddl.planner.within_memory import until_it_fits
from autoddl.sbp.layout import OUTPUT
from autoddl.sbp.program import Program
from autoddl.sbp.program.forward_positions import Positions, positions
from autoddl.sbp.rewrites.stage_copies import is_own
from autoddl.sbp.rewrites.tied_sums import tied_sums
from autoddl.search.budget import BINARY, EVALUATION_S, Allowance

ROUNDS = 4  # programs until the whole memory fits
CLOSE = 1e-4  # the gap at which the program ends: predictions are off by more


def nodes(program: Program, found: Positions) -> Positions:
    """Return by name the number of a node: the positions come first."""
    own = dict.fromkeys((*_unsteady(program), *program.inputs))
    for one in tied_sums(program):  # once per step, where the parameter is
        own = {name: None for name in own if name not in one.names}
    number = {name: found.count + n for n, name in enumerate(own)}
    op = {name: number.get(name, place) for name, place in found.op.items()}
    held = {name: number.get(name, place) for name, place in found.held.items()}
    return Positions(found.count + len(own), op, {**held, OUTPUT: found.count - 1})


def _unsteady(program: Program) -> Iterator[str]:
    """Yield the ops of the backward pass that stand at unlike forward ops in some orders of capture."""
    forward = [op for op in program.ops if op.phase == "forward"]
    number = {op.name: n for n, op in enumerate(forward)}
    makers = [
        (program.producer[tensor].name, op.name)
        for op in forward
        for _, tensor in op.inputs
        if tensor in program.producer
    ]
    edges = np.array([(number[a], number[b]) for a, b in makers], dtype=np.int64).reshape(-1, 2)
    hosts: dict[str, set[int]] = {}
    for order in orders(np.unique(edges, axis=0), len(forward)):
        turn = {forward[node].name: place for place, node in enumerate(order)}
        for name, place in positions(program, turn).op.items():
            hosts.setdefault(name, set()).add(order[place])
    for op in program.ops:
        if op.phase == "backward" and len(hosts[op.name]) > 1:
            yield op.name


def stage_graph(
    assigned: Assigned, stages: int, micro_batches: int, links: Links,
    pins: StagePins | None = None,
) -> StageGraph:  # fmt: skip
    """Return what the stages of a program are chosen from, each on a mesh of the assignment's shape.

    What is sent to a stage comes from the one beside it.
    """
    program = assigned.problem.program
    found = positions(program)
    whole = Staged.equal(assigned, found, (), micro_batches, links)
    place = nodes(program, found)
    costs = UnitCosts(whole, place)
    units = costs.units(again=False)
    tensors = dict(_sent(whole, place))
    sizes = dict(zip(whole.made, costs.sizes.tolist(), strict=True))
    size, rows = assigned.problem.mesh.size, np.zeros((len(tensors), stages))
    ranks = [tuple(range(n * size, (n + 1) * size)) for n in range(stages)]
    costly = np.array([not _everywhere(program, name) for name in tensors], dtype=bool)
    backward = np.array([one.back for one in tensors.values()], dtype=bool)
    bytes_of = np.array([float(sizes[name]) for name in tensors])
    for one, other in zip(range(stages - 1), range(1, stages), strict=True):
        for source, target, mine in ((one, other, ~backward), (other, one, backward)):
            seconds = links.all_seconds(ranks[source], ranks[target], bytes_of)
            rows[:, target] = np.where(mine & costly, seconds, rows[:, target])
    return StageGraph(
        units.seconds, units.once_s, units.waiting_s, units.held_bytes, units.active_bytes,
        tuple(tensors.values()), rows, (costly * bytes_of).astype(np.int64), found.count,
        tuple(pins.nodes(place)) if pins else (),
    )  # fmt: skip


def _sent(whole: Staged, place: Positions) -> Iterator[tuple[str, SentTensor]]:
    """Yield what is made for a micro-batch and read by other nodes."""
    program = whole.program
    once = {name for one in tied_sums(program) for name in one.names}
    for tensor in whole.made:
        maker = program.producer.get(tensor)
        names = [op.name for op, _ in program.consumers.get(tensor, ()) if op.phase != "optimizer"]
        readers = [place.op[name] for name in names if name not in once]
        if whole.goes_once(tensor) or not readers or (maker and maker.phase == "optimizer"):
            continue
        made = place.held[tensor] if maker is None else place.op[maker.name]
        back = maker is not None and maker.phase == "backward"
        yield tensor, SentTensor(made, tuple(sorted(set(readers))), back)


def _everywhere(program: Program, tensor: str) -> bool:
    """Tell whether each stage makes a tensor by itself."""
    maker = program.producer.get(tensor)
    return maker is not None and is_own(program, maker)


def free_cut(
    assigned: Assigned,
    stages: int,
    micro_batches: int,
    links: Links,
    limit: int | None,
    allowance: Allowance,
    pins: StagePins | None = None,
) -> Staged | None:
    """Return the fastest equal stages that were found in time, None where none fit.

    They follow one assignment, as in `cuts.equal_cut`; none makes its forward results again.
    """
    graph = stage_graph(assigned, stages, micro_batches, links, pins)
    most = NO_LIMIT if limit is None else limit

    def find(bound: int) -> Staged | None:
        found = fastest(graph, micro_batches, limit=bound, effort=_effort(graph, allowance))
        if found is None:
            return None
        _count(graph, allowance, found.branches)
        return in_stages(assigned, found.stage_of, micro_batches, links)

    def tighter(bound: int, staged: Staged) -> int | None:
        needed = staged.memory_bytes
        return None if needed <= most else int(bound * most / needed)

    tried = list(until_it_fits(most, find, tighter, ROUNDS))
    more = [staged.with_in_flight(staged.flying) for staged in tried]
    fitting = (staged for staged in (*tried, *more) if staged.memory_bytes <= most)
    return min(fitting, key=lambda staged: staged.timeline.step_s, default=None)


def _effort(graph: StageGraph, allowance: Allowance) -> HighsLimits:
    """Return what is left to HiGHS; each of its branches is worth the program's binaries."""
    if not allowance.clock.counted:
        return HighsLimits(allowance.left_s(), gap=CLOSE)
    return HighsLimits(branches=int(allowance.left_s() / (EVALUATION_S * _work(graph))), gap=CLOSE)


def _count(graph: StageGraph, allowance: Allowance, branches: int) -> None:
    allowance.clock.count(_work(graph) * (1 + branches))


def _work(graph: StageGraph) -> float:
    return BINARY * len(graph.seconds) * (graph.stages - 1)


def in_stages(
    assigned: Assigned, stages: Sequence[int], micro_batches: int, links: Links
) -> Staged:
    """Return an assignment in the stages of its nodes: a cut of the ops in the order of these."""
    program = assigned.problem.program
    forward = [op.name for op in program.ops if op.phase == "forward"]
    stage_of = dict(zip(forward, stages, strict=False))
    counts = np.bincount(list(stage_of.values()))
    bounds = list(accumulate(counts.tolist()))[:-1]
    return Staged.equal(assigned, positions(program, stage_of), bounds, micro_batches, links)
