"""The device memory of OneFlow's own plan, compiled for CUDA without a GPU.

The job of a graph gets a plan and CUDA placements; OneFlow then writes its plan, with the memory that
every rank would allocate, before the runtime fails for want of a device. That takes one process per
rank (the others only have to be there) and a C compiler, for a stand-in for cuDNN and the devices
(experiments.lib.cuda_stand_in). Workspaces of convolutions depend on the device, so they are not part of
these numbers. A plan for CUDA devices is compiled from their own trace of the graph, one for CPU ranks
from theirs.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any

from autoddl.errors import AutoDDLError
from autoddl.plan.codec import save
from autoddl.plan.value import PlanValue
from experiments.lib.cuda_stand_in import environment
from experiments.lib.ranks import started

REQUEST, PLAN, DONE = "request.json", "plan.json", "done"


@dataclass(frozen=True)
class PlanMemory:
    """What one rank allocates on its device, in bytes.

    `variables` are parameters, buffers and optimizer states; `reused` the blocks that OneFlow shares
    between tensors whose lives do not overlap; `others` blocks of their own (results of collectives,
    inputs, outputs).
    """

    rank: int
    variables: int
    reused: int
    others: int

    @property
    def total(self) -> int:
        """Return all bytes of the rank."""
        return self.variables + self.reused + self.others


def cuda_memory(
    plan: PlanValue, factory: str, arguments: Mapping[str, Any],
    *, precision: str = "float32", timeout_s: float = 120.0,
) -> tuple[PlanMemory, ...]:  # fmt: skip
    """Return what every rank would allocate on CUDA devices under `plan`.

    `factory` is "MODULE:FUNCTION", called with `arguments` (JSON values) for (graph, inputs): the
    graph that was planned, with mixed precision where `precision` is float16 or bfloat16. It is built
    inside `abstract_parameters`, so that big models cost nothing.

    Raises:
        AutoDDLError: no C compiler; OneFlow writes no plan (its last lines are in the message).
    """
    with tempfile.TemporaryDirectory(prefix="autoddl-cuda-") as name:
        request = {"factory": factory, "arguments": dict(arguments), "precision": precision}
        return parse(_compiled(plan, request, Path(name), timeout_s))


def _compiled(
    plan: PlanValue, request: Mapping[str, Any], folder: Path, timeout_s: float
) -> Iterator[str]:
    """Compile for CUDA in `folder` and yield the lines of OneFlow's plan."""
    save(plan, folder / PLAN)
    (folder / REQUEST).write_text(json.dumps(request))
    module = "experiments.fidelity.memory.cuda_memory_rank"
    error = started(module, [str(folder), DONE], plan.devices, timeout_s, environment(folder))
    for picture in sorted(folder.glob("log/**/job_*_plan.dot"))[:1]:  # it comes after the text
        with picture.with_suffix("").open() as text:
            yield from text
        return
    raise AutoDDLError(f"memory of the CUDA plan: OneFlow wrote none: {error}")


def parse(lines: Iterable[str]) -> tuple[PlanMemory, ...]:
    """Sum up the memory blocks of a plan's text by rank; chunks are made of blocks, so they don't count.

    Host memory does not count either: blocks of CPU tasks, pinned buffers, the headers of tensors.
    """
    sums: dict[int, list[int]] = {}
    for block in _blocks(lines):
        if block.get("device_type") != "kCUDA" or block.get("is_separated_header") == "true":
            continue
        kind = 0 if "variable_op_name" in block else 1 if "chunk_id" in block else 2
        row = sums.setdefault(int(block["machine_id"]), [0, 0, 0])
        row[kind] += int(block.get("mem_size", "0"))
    return tuple(PlanMemory(rank, *sums[rank]) for rank in sorted(sums))


def _blocks(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    """Yield the fields of every mem_block message, those of its memory case among them."""
    behind = dropwhile(lambda line: not line.startswith("block_chunk_list {"), lines)
    block: dict[str, str] = {}
    for line in takewhile(lambda line: not line.startswith("}"), behind):
        key, _, value = line.strip().partition(": ")
        if line.startswith("  mem_block {"):
            block = {}
        elif line.startswith("  chunk {"):
            return  # chunks follow all blocks
        elif line.startswith("  }"):
            yield block
        else:
            block[key] = value.strip('"')
