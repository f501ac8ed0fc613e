"""The device memory of OneFlow's own plan, compiled for CUDA without a GPU.

The job of a graph gets a plan and CUDA placements; OneFlow then makes its plan, with the memory that
every rank would allocate, and its runtime is never begun. That takes one process per
rank (the others only have to be there) and a C compiler, for a stand-in for cuDNN and the devices
(experiments.lib.without_gpu). Workspaces of convolutions depend on the device, so they are not part of
these numbers. A plan for CUDA devices is compiled from their own trace of the graph, one for CPU ranks
from theirs.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoddl.errors import AutoDDLError
from autoddl.plan.codec import save
from autoddl.plan.value import PlanValue
from experiments.lib.ranks import started
from experiments.lib.without_gpu import PLAN, environment

REQUEST, WANTED = "request.json", "plan.json"


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
    plan: PlanValue, factory: str, arguments: Mapping[str, Any], *, precision: str = "float32"
) -> tuple[PlanMemory, ...]:
    """Return what every rank would allocate on CUDA devices under `plan` (arguments of `compiled`)."""
    return memory_of(compiled(plan, factory, arguments, precision=precision))


def compiled(
    plan: PlanValue, factory: str, arguments: Mapping[str, Any],
    *, precision: str = "float32", timeout_s: float = 120.0,
) -> Any:  # fmt: skip
    """Return OneFlow's own plan for CUDA devices, a Plan message, under `plan`.

    `factory` is "MODULE:FUNCTION", called with `arguments` (JSON values) for (graph, inputs): the
    graph that was planned, with mixed precision where `precision` is float16 or bfloat16. It is built
    inside `abstract_parameters`, so that big models cost nothing.

    Raises:
        AutoDDLError: no C compiler; OneFlow writes no plan (its last lines are in the message).
    """
    from oneflow.core.job import plan_pb2

    with tempfile.TemporaryDirectory(prefix="autoddl-cuda-") as name:
        folder = Path(name)
        save(plan, folder / WANTED)
        request = {"factory": factory, "arguments": dict(arguments), "precision": precision}
        (folder / REQUEST).write_text(json.dumps(request))
        module = "experiments.fidelity.memory.cuda_memory_rank"
        error = started(module, [name], plan.devices, timeout_s, environment(folder))
        try:
            return plan_pb2.Plan.FromString((folder / PLAN).read_bytes())
        except FileNotFoundError:
            raise AutoDDLError(f"OneFlow wrote no plan for CUDA: {error}") from None


def memory_of(plan: Any) -> tuple[PlanMemory, ...]:
    """Sum up the memory blocks of OneFlow's plan by rank; chunks are made of blocks, so they don't count.

    Host memory does not count either: blocks of CPU tasks, pinned buffers, the headers of tensors.
    """
    from oneflow.core.common import device_type_pb2

    sums: dict[int, list[int]] = {}
    for block in plan.block_chunk_list.mem_block:
        if block.mem_case.device_type != device_type_pb2.kCUDA or block.is_separated_header:
            continue
        kind = 0 if block.HasField("variable_op_name") else 1 if block.HasField("chunk_id") else 2
        row = sums.setdefault(block.machine_id, [0, 0, 0])
        row[kind] += block.mem_size
    return tuple(PlanMemory(rank, *sums[rank]) for rank in sorted(sums))
