"""States of what OneFlow puts between gradients and updates, which is in no program.

Clipping and decay make a chain of ops for each gradient; the norm, or the count of values that are not
finite, reads all gradients at once. In a program an update reads the gradient itself. In the job the
gradient's redistribution comes first, then the chain in the state of the update, so that each gradient
is reduced once, as without clipping:

    dw (P) → boxing → dw (S0) → ScalarMul (S0) → update (S0)
                          └──→ norm of all that are S0 (P) → boxing (B) → + → coefficient → ScalarMul

What reads all gradients takes one state for all: it is done for those of each state, on the devices of
each stage, and the results, which are scalars, are added up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from autoddl.engine.oneflow.job.job_writer import JobWriter, write_signature
from autoddl.plan.value import PlanValue
from autoddl.sbp.state import B, NdSbp, P, broadcast

_SUMMED = ("multi_square_sum", "multi_reduce_sum_pow_abs", "multi_count_not_finite")
# Of the maxima of parts OneFlow 0.9 makes the sum: gradients whose largest is clipped get too small.
_WHOLE = ("multi_reduce_max_abs", "multi_reduce_min_abs")
_NAME = "autoddl-gradients-"


def write_chains(writer: JobWriter, plan: PlanValue) -> None:
    """Write the states of all that is between gradients and updates; redistributions are there."""
    for update, operand in writer.behind:
        _write_chain(writer, update, plan.signatures[update][operand])
    for op in list(writer.job.net.op):
        if op.user_conf.op_type_name in _SUMMED:
            _part(writer, op)
        elif op.user_conf.op_type_name in _WHOLE:
            _make_whole(writer, op)


def _write_chain(writer: JobWriter, update: str, state: NdSbp) -> None:
    whole = broadcast(len(state))
    for op in writer.chain_before(update):
        operands = {f"{name}_0": state for name in (*op.user_conf.input, *op.user_conf.output)}
        write_signature(
            writer.job, op.name, operands | {o: whole for o in operands if o == "scalar_0"}
        )


def _part(writer: JobWriter, op: Any) -> None:
    """Let an op that sums up over all gradients do so for those of one state and stage at a time."""
    groups: dict[tuple[str, ...], Any] = {}
    parts: dict[tuple[tuple[str, ...], NdSbp], list[str]] = defaultdict(list)
    for lbn in op.user_conf.input["x"].s:
        group = writer.group[lbn.split("/")[0]]
        devices = tuple(group.parallel_conf.device_name)
        groups[devices] = group
        parts[devices, writer.state(lbn)].append(lbn)
    home, total = writer.group[op.name], op.user_conf.output["y"].s[0]
    readers = list(_readers(writer, total))
    sums = []
    for number, ((devices, state), blobs) in enumerate(parts.items()):
        part = op if number == 0 else writer.copy(op, f"{op.name}-{number}")
        writer.move(part.name, groups[devices])
        part.user_conf.input["x"].s[:] = blobs
        made = NdSbp(P if sbp.is_split else B for sbp in state)
        operands = {f"x_{place}": state for place in range(len(blobs))}
        write_signature(writer.job, part.name, {**operands, "y_0": made})
        lbn = writer.chain(f"{_NAME}{part.name}", part.user_conf.output["y"].s[0], _to_whole(made))
        if devices != tuple(home.parallel_conf.device_name):
            whole = broadcast(len(home.parallel_conf.hierarchy.dim))
            lbn = writer.identity(f"{_NAME}{part.name}-here", lbn, whole, group=home)
        sums.append(lbn)
    result = sums[0] if len(sums) == 1 else _added(writer, f"{op.name}-sum", sums, home)
    for port, place in readers:
        port[place] = result


def _make_whole(writer: JobWriter, op: Any) -> None:
    """Let an op read and make whole tensors."""
    blobs = op.user_conf.input["x"].s
    whole = None
    for place, lbn in enumerate(list(blobs)):
        state = writer.state(lbn)
        whole = broadcast(len(state))
        blobs[place] = writer.chain(f"{_NAME}{op.name}-{place}", lbn, _to_whole(state))
    if whole is not None:
        operands = [*(f"x_{place}" for place in range(len(blobs))), "y_0"]
        write_signature(writer.job, op.name, dict.fromkeys(operands, whole))


def _to_whole(state: NdSbp) -> Iterator[NdSbp]:
    """Yield the states on the way to broadcast, one axis after the other (R2), from the innermost on."""
    current = list(state)
    yield NdSbp(current)
    for axis in reversed(range(len(current))):
        if current[axis] != B:
            current[axis] = B
            yield NdSbp(current)


def _readers(writer: JobWriter, lbn: str) -> Iterator[tuple[Any, int]]:
    for op in writer.job.net.op:
        for port in op.user_conf.input.values():
            for place, read in enumerate(port.s):
                if read == lbn:
                    yield port.s, place


def _added(writer: JobWriter, name: str, sums: Sequence[str], group: Any) -> str:
    like, result = writer.ops[sums[0].split("/")[0]], f"{name}/out_0"
    writer.add(name, "add_n", like, {"in": sums}, {"out": [result]}, group=group)
    writer.descs[result].CopyFrom(writer.descs[sums[0]])
    whole = broadcast(len(group.parallel_conf.hierarchy.dim))
    operands = [*(f"in_{place}" for place in range(len(sums))), "out_0"]
    write_signature(writer.job, name, dict.fromkeys(operands, whole))
    return result
