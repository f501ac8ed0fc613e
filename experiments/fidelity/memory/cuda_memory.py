"""The device memory of OneFlow's own plan, compiled for CUDA without a GPU.

The job of a graph that was traced on the CPU gets a plan and CUDA placements; OneFlow then writes its
plan, with the memory that every rank would allocate, before the runtime fails for want of a device.
That takes one process per rank (the others only have to be there) and a C compiler: cuDNN, which is
asked for the workspace of convolutions, is replaced by a stand-in that asks for none. Real workspaces
depend on the device, so they are not part of these numbers.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any

from autoddl.errors import AutoDDLError
from autoddl.plan.codec import save
from autoddl.plan.value import PlanValue
from experiments.lib.ranks import started

REQUEST, PLAN, DONE = "request.json", "plan.json", "done"

# OneFlow reads the first result of cuDNN's heuristics: an algorithm (1) without workspace.
_CUDNN = r"""
#include <stddef.h>
#include <string.h>
typedef struct {
  int algorithm, status; float seconds; size_t bytes; int determinism, math, reserved[3];
} Found;
static int handle;
void *_ZN7oneflow15CudnnHandlePool3GetEv(void *pool) { return &handle; }
void _ZN7oneflow15CudnnHandlePool3PutEP12cudnnContext(void *pool, void *h) {}
#define FAKE(name) \
  int cudnnGetConvolution##name##AlgorithmMaxCount(void *h, int *count) { *count = 1; return 0; } \
  int cudnnGetConvolution##name##Algorithm_v7(void *h, void *a, void *b, void *c, void *d, \
                                              int wanted, int *count, Found *found) { \
    memset(found, 0, sizeof *found); \
    found->algorithm = found->determinism = *count = 1; \
    return 0; \
  } \
  int cudnnGetConvolution##name##WorkspaceSize(void *h, void *a, void *b, void *c, void *d, \
                                               int algorithm, size_t *bytes) { \
    *bytes = 0; \
    return 0; \
  }
FAKE(Forward)
FAKE(BackwardData)
FAKE(BackwardFilter)
"""


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
    plan: PlanValue, factory: str, arguments: Mapping[str, Any], *, timeout_s: float = 120.0
) -> tuple[PlanMemory, ...]:
    """Return what every rank would allocate on CUDA devices under `plan`.

    `factory` is "MODULE:FUNCTION", called with `arguments` (JSON values) for (graph, inputs): the
    graph that was planned. It is built inside `abstract_parameters`, so that big models cost nothing.

    Raises:
        AutoDDLError: no C compiler; OneFlow writes no plan (its last lines are in the message).
    """
    with tempfile.TemporaryDirectory(prefix="autoddl-cuda-") as name:
        return parse(_compiled(plan, factory, arguments, Path(name), timeout_s))


def _compiled(
    plan: PlanValue, factory: str, arguments: Mapping[str, Any], folder: Path, timeout_s: float
) -> Iterator[str]:
    """Compile for CUDA in `folder` and yield the lines of OneFlow's plan."""
    save(plan, folder / PLAN)
    (folder / REQUEST).write_text(json.dumps({"factory": factory, "arguments": dict(arguments)}))
    preload = os.pathsep.join(filter(None, (str(_stand_in(folder)), os.environ.get("LD_PRELOAD"))))
    module, env = "experiments.fidelity.memory.cuda_memory_rank", {"LD_PRELOAD": preload}
    error = started(module, [str(folder)], plan.devices, timeout_s, env)
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


def _stand_in(folder: Path) -> Path:
    """Compile the stand-in for cuDNN."""
    source, library = folder / "cudnn.c", folder / "cudnn.so"
    source.write_text(_CUDNN)
    flags = ["-shared", "-fPIC", "-w", "-o", str(library), str(source)]
    try:
        subprocess.run(
            [os.environ.get("CC", "cc"), *flags], check=True, capture_output=True, text=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        reason = re.sub(r"\s+", " ", str(getattr(error, "stderr", "") or error)).strip()
        raise AutoDDLError(
            f"memory of the CUDA plan: no C compiler ({reason[:200]}); install one, or name it in CC"
        ) from None
    return library
