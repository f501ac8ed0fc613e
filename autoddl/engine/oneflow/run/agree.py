"""Let all ranks have the same plan, made on rank 0, and the same constants; tell all what each says."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import oneflow as flow

from autoddl.engine import engines
from autoddl.engine.oneflow.capture.constants import digests_of
from autoddl.engine.oneflow.run.meeting import meet
from autoddl.errors import AutoDDLError
from autoddl.launch.job import KIND
from autoddl.plan import codec
from autoddl.plan.value import PlanValue

logger = logging.getLogger(__name__)


def world_size() -> int:
    return int(flow.env.get_world_size())


def cluster() -> tuple[int, int]:
    """Return the number of nodes, and of ranks on each."""
    nodes = int(flow.env.get_node_size())
    return nodes, world_size() // nodes


def from_rank_0(make: Callable[[], PlanValue]) -> PlanValue:
    """Return the plan that `make` gives on rank 0; its error is raised on every rank.

    Raises:
        AutoDDLError: what `make` raised on rank 0.
    """
    meet("optimize")
    if world_size() == 1:
        return make()
    failure: AutoDDLError | None = None
    plan: PlanValue | None = None
    said = {}
    if flow.env.get_rank() == 0:
        try:
            plan = make()
            said = {"plan": codec.encode(plan).decode()}
        except AutoDDLError as error:
            failure, said = error, {"error": str(error)}
        except Exception as error:  # the others wait: tell them before this rank goes down
            text_of_rank_0(json.dumps({"error": f"rank 0 failed: {error!r}"}))
            raise
    answer = json.loads(text_of_rank_0(json.dumps(said)))
    if failure is not None:
        raise failure
    if "error" in answer:
        raise AutoDDLError(answer["error"])
    return plan or codec.decode(answer["plan"], "plan of rank 0", engines.model)


def of_rank_0(constants: Mapping[str, flow.Tensor]) -> dict[str, flow.Tensor]:
    """Return rank 0's constants of a graph; say once where other ranks have other values.

    All ranks have to call it, each with those that it has traced.
    """
    found, told = dict(constants), [dict(each) for each in said_by_all(digests_of(constants))]
    other = [name for name in told[0] if any(each[name] != told[0][name] for each in told)]
    if other and flow.env.get_rank() == 0:
        logger.warning(
            "%d constants of the graph have other values on other ranks, first %s; those of rank 0 are "
            "taken", len(other), other[0],
        )  # fmt: skip
    for name in other:
        array = constants[name].detach().numpy()
        data = np.frombuffer(bytes_of(0, array.tobytes()), dtype=array.dtype)
        found[name] = flow.tensor(data.reshape(array.shape), device=constants[name].device)
    return found


def text_of_rank_0(text: str) -> str:
    return bytes_of(0, text.encode()).decode()


def said_by_all(own: Any) -> list[Any]:
    """Return what each rank says, as JSON has it, on every rank; all have to call it."""
    text = json.dumps(own).encode()
    return [json.loads(bytes_of(rank, text)) for rank in range(world_size())]


def check_kinds(plan: PlanValue) -> None:
    """Raise AutoDDLError on all ranks where one says that it is on a node of another kind than planned.

    Of plans for devices that are all alike nothing is asked, nor of ranks that were told no kind
    (`autoddl run --kind`).
    """
    planned = {rank: part.kinds for part in plan.parts for rank in part.ranks}
    if not any(planned.values()) or world_size() == 1:
        return
    for rank, kind in enumerate(said_by_all(os.environ.get(KIND, ""))):
        if kind and kind not in planned[rank]:
            raise AutoDDLError(
                f"plan: rank {rank} is on a node of kind {kind}, where the plan has "
                f"{' or '.join(planned[rank])}; start the nodes in the order of the plan's cluster "
                "(--node-rank), or plan for the order in which they are"
            )


def bytes_of(rank: int, data: bytes) -> bytes:
    """Return the bytes of a rank on every rank; all have to call it."""
    array = np.frombuffer(data, dtype=np.uint8)
    size = flow.tensor([len(array)], dtype=flow.int64)
    flow.comm.broadcast(size, rank)
    count = int(size.numpy()[0])
    if count == 0:
        return b""
    body = flow.tensor(array.copy()) if len(array) == count else flow.zeros(count, dtype=flow.uint8)
    flow.comm.broadcast(body, rank)
    return bytes(body.numpy().tobytes())
