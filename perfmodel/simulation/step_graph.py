"""The works of a step as a graph, compiled: the ops of a program, and behind each what moves its results.

Of ops a and b the second reads what the first makes, behind two boxings: works 0 (a), 1 and 2 (the
boxings) and 3 (b), each waiting for the one before. Boxings of what no op makes come first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autoddl.compiled import compiled
from autoddl.perfmodel.resources import DEVICE, ResourceParts
from autoddl.perfmodel.simulation.event_simulation import StepQueue, Works, by_number
from autoddl.perfmodel.simulation.launch_queue import Collectives, LaunchLimits
from autoddl.ragged import Ragged
from autoddl.sbp.program import Program

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class OpWaits(NamedTuple):
    """What the ops of a program wait for: input i is read by `op[i]` and made by `maker[i]`, or -1.

    Beside, `then[i]` waits for `first[i]`.
    """

    op: Ints
    maker: Ints
    first: Ints
    then: Ints

    @classmethod
    def of(cls, program: Program) -> OpWaits:
        """Return what ops wait for: those whose results they read, and of parameters the readers."""
        columns = program.columns
        inputs = columns.inputs
        return cls(inputs.op, columns.maker[inputs.tensor], *program.precedence)


class StepMoves(NamedTuple):
    """The boxings of a step: move m is of a result of `maker[m]`, -1 for none, in ascending order.

    Its boxings, one behind the other, are of the kinds `kind[begin[m] : begin[m + 1]]`. Input i of all
    ops waits for move `before[i]`, -1 for none.
    """

    maker: Ints
    begin: Ints
    kind: Ints
    before: Ints


class BoxingParts(NamedTuple):
    """On which resources each kind of boxing runs for how long: the parts of kind k begin at `begin[k]`.

    The device is the first of the `resources`. If there is a queue, `collectives` says what each kind is
    in it, and `limits` what may go together.
    """

    resources: Sequence[str]
    begin: Ints
    resource: Ints
    seconds: Floats
    collectives: Collectives | None = None
    limits: LaunchLimits | None = None

    @classmethod
    def of(cls, kinds: Sequence[ResourceParts]) -> BoxingParts:
        """Return those of kinds by number."""
        resources, resource, seconds = by_number([((DEVICE, 0.0),), *kinds])
        return cls(resources, resource.start[1:], resource.items, seconds)


def step_works(
    waits: OpWaits, compute_s: Floats, moves: StepMoves, parts: BoxingParts,
    slow: Mapping[str, float],
) -> tuple[Works, Ints]:  # fmt: skip
    """Return the works of a step, without names, and which of them each op is, and then each boxing."""
    place, begin, resource, seconds, first, then = step_graph(
        waits, compute_s, moves, parts.begin, parts.resource, parts.seconds
    )
    rows = Ragged(begin, resource)
    works = Works.of((), parts.resources, rows, seconds, first, then, slow)
    if parts.collectives is None or parts.limits is None:
        return works, place
    ops = len(compute_s)
    kind, size = np.full(len(place), -1), np.zeros(len(place), np.int64)
    kind[place[ops:]], size[place[ops:]] = (of[moves.kind] for of in parts.collectives)
    is_op = np.zeros(len(place), np.bool_)
    is_op[place[:ops]] = True
    return works.queued(StepQueue(Collectives(kind, size), is_op, parts.limits)), place


@compiled
def step_graph(
    waits: OpWaits, compute_s: Floats, moves: StepMoves, part_begin: Ints, resource: Ints,
    seconds: Floats,
) -> tuple[Ints, Ints, Ints, Floats, Ints, Ints]:  # fmt: skip
    """Return which work all ops, and then all boxings are, the parts of works, and what waits for what.

    Parts are told by where those of each work begin, resources and seconds; `then` waits for `first`.
    """
    ops, boxings = len(compute_s), len(moves.kind)
    parts = ops
    for kind in moves.kind:
        parts += part_begin[kind + 1] - part_begin[kind]
    place, begin = np.empty(ops + boxings, np.int64), np.zeros(ops + boxings + 1, np.int64)
    on, took = np.empty(parts, np.int64), np.empty(parts, np.float64)
    work, part, move = 0, 0, 0
    for op in range(-1, ops):
        if op >= 0:
            place[op] = work
            if compute_s[op] > 0:
                on[part], took[part] = 0, compute_s[op]
                part += 1
            work += 1
            begin[work] = part
        while move < len(moves.maker) and moves.maker[move] == op:
            for boxing in range(moves.begin[move], moves.begin[move + 1]):
                place[ops + boxing] = work
                kind = moves.kind[boxing]
                for k in range(part_begin[kind], part_begin[kind + 1]):
                    on[part], took[part] = resource[k], seconds[k]
                    part += 1
                work += 1
                begin[work] = part
            move += 1
    most = len(waits.op) + boxings + len(waits.first)
    first, then, pairs = np.empty(most, np.int64), np.empty(most, np.int64), 0
    for read in range(len(waits.op)):
        move, source = moves.before[read], waits.maker[read]
        if move >= 0 and moves.begin[move] < moves.begin[move + 1]:  # a path may have no boxing
            source = ops + moves.begin[move + 1] - 1
        if source >= 0:
            first[pairs], then[pairs] = place[source], place[waits.op[read]]
            pairs += 1
    for move in range(len(moves.maker)):
        source = moves.maker[move]
        for boxing in range(moves.begin[move], moves.begin[move + 1]):
            if source >= 0:
                first[pairs], then[pairs] = place[source], place[ops + boxing]
                pairs += 1
            source = ops + boxing
    for pair in range(len(waits.first)):
        first[pairs], then[pairs] = place[waits.first[pair]], place[waits.then[pair]]
        pairs += 1
    return place, begin, on[:part], took[:part], first[:pairs], then[:pairs]
