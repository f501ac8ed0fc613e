"""Jobs that accumulate gradients: what the engine adds for it, and the names of everything else.

With gradient accumulation the engine traces one micro-batch. Behind every input it puts an `unpack`,
behind every variable a `repeat`, behind every gradient an `acc` and a scaling, before every output a
`pack`. These take numbers from the count that names the ops, so that the others have other names than
in the graph of one micro-batch.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

from autoddl.engine.oneflow.capture import op_names
from autoddl.engine.oneflow.capture.constants import is_constant

_NONE = -1  # the number of an op whose name has none
INSERTED = ("unpack", "repeat", "acc", "pack")
_TICK = "UserSourceOpTickInput"  # of ops without inputs, which so have each micro-batch their own


def is_inserted(op: Any) -> bool:
    """Tell whether gradient accumulation added an op of a job."""
    return _numbered(op) or op_names.scales_accumulated(op)


def source(op: Any) -> str:
    """Return the blob that an inserted op hands on."""
    return str(op.user_conf.input["in"].s[0])


def rename(job: Any, built: Any) -> dict[str, str]:
    """Give the ops of an accumulating job the names that they have in the graph of one micro-batch.

    `built` is the job before the engine's passes, some of which drop ops that have been counted. Returns
    the new names by the old ones.
    """
    inserted = [op for op in (*built.net.op, *job.net.op) if _numbered(op)]
    numbers = sorted({_number(op) for op in inserted} - {_NONE})
    names = dict(_names(job, numbers))
    for op in job.net.op:  # what scales the loss is named after that
        before, pinned, rest = op.name.partition("_out_0_pinned_")
        if pinned and before in names:
            names[op.name] = names[before] + pinned + rest

    op_names.rename(job, names)
    return names


def micro_job(job: Any) -> Any:
    """Return the job of one micro-batch from a renamed one: without what accumulation inserted."""
    found = type(job)()
    found.CopyFrom(job)
    inserted = [op for op in found.net.op if is_inserted(op)]
    handed = {lbn: source(op) for op in inserted for lbn in op.user_conf.output["out"].s}

    def made(lbn: str) -> str:
        while lbn in handed:
            lbn = handed[lbn]
        return lbn

    descs = found.helper.lbn2logical_blob_desc
    for op in inserted:
        if op.user_conf.op_type_name == "unpack":
            descs[source(op)].CopyFrom(descs[op.user_conf.output["out"].s[0]])
    kept = [op for op in found.net.op if not is_inserted(op)]
    for op in kept:
        if _TICK in op.user_conf.input:
            del op.user_conf.input[_TICK]
        for port in op.user_conf.input.values():
            port.s[:] = [made(s) for s in port.s]
        if op.WhichOneof("op_type") == "output_conf":
            setattr(op.output_conf, "in", made(getattr(op.output_conf, "in")))
    del found.net.op[:]
    found.net.op.extend(kept)
    return found


def _names(job: Any, numbers: Sequence[int]) -> Iterator[tuple[str, str]]:
    """Yield the name of every op whose number counts inserted ones, with that without them."""
    for op in job.net.op:
        number = _number(op)
        named_by_count = op.WhichOneof("op_type") == "user_conf" or is_constant(op)
        if named_by_count and number >= 0 and not is_inserted(op):
            before = bisect_left(numbers, number)
            if before and not op.name.startswith("Sys"):
                yield op.name, f"{op.name.rpartition('-')[0]}-{number - before}"


def _number(op: Any) -> int:
    match = re.fullmatch(r".+-(\d+)", op.name)
    return int(match[1]) if match else _NONE


def _numbered(op: Any) -> bool:
    return op.user_conf.op_type_name in INSERTED
