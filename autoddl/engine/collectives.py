"""Measure boxings and the device on every rank; the rank program that autoddl.fit_network starts.

What is measured is what plans execute: boxing inside nn.Graph, which has another implementation
and other costs than eager boxing. One number takes two graphs, the *chain* and its *twin*:

    chain   s -> x·s -> boxing -> one element of it -> s -> x·s -> boxing -> …   (`steps` boxings)
    twin    the same kernels on local tensors of the same size, everything broadcast, no boxing

and is (median time of a call of the chain − that of the twin) / `steps`. Each boxing waits for the
one before it, since its input x·s needs an element of the last result; nothing else ties the ranks
together. Feeding and fetching (s has one element), launching the graph, multiplying and picking the
element are in both graphs and drop out. No local step such as B -> P is needed to get back to the
first state: x is in that state which makes x·s the boxing's input again. Along the measured axis:

    collective       x   s   boxing
    all-reduce       P   B   P  -> B
    all-gather       S0  B   S0 -> B
    reduce-scatter   B   P   P  -> S0          (s is summed over the rows, so it is P)
    all-to-all       S0  B   S0 -> S1 -> S0 …  (x <- boxing of x·s)

x has one more dim in front; on the mesh [N/p, p] the outer axis cuts it, so that N/p independent
groups of p ranks work at once. Every chain must return what it was given, else the run fails.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import oneflow as flow

from autoddl.engine import device_chains
from autoddl.sbp.boxing import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER

ITEM_BYTES = 4
_WARM_UP = 1

Body = Callable[..., Any]
Box = Callable[[Any, str], Any]


@dataclass(frozen=True)
class _States:
    """States of x and s along the measured axis, and the state that the boxing leads to."""

    x: str
    s: str
    target: str


# S1, S2 are S0, S1 of the message: dim 0 counts the groups.
_STATES = {
    ALL_REDUCE: _States(x="P", s="B", target="B"),
    ALL_GATHER: _States(x="S1", s="B", target="B"),
    REDUCE_SCATTER: _States(x="B", s="P", target="S1"),
    ALL_TO_ALL: _States(x="S1", s="B", target="S2"),
}


class Stopwatch:
    """Time calls of a function of global tensors, on all ranks at once."""

    def __init__(self, mode: str, repetitions: int) -> None:
        self.mode = mode
        self.repetitions = repetitions
        self.twins: dict[tuple[bool, int, int], list[float]] = {}

    def calls(self, body: Body, inputs: Sequence[Any]) -> tuple[list[float], Any]:
        """Return the seconds of each repetition on this rank, and the last result.

        With mode "graph" `body` becomes the build of an nn.Graph; with "eager" it runs as it is.
        Every repetition starts at a barrier (which the ranks leave within 0.1 ms).
        """
        function = _Graph(body) if self.mode == "graph" else body
        samples = []
        for _ in range(_WARM_UP + self.repetitions):
            flow.comm.barrier()
            start = time.perf_counter()
            result = function(*inputs)
            result.to_local()
            flow._oneflow_internal.eager.Sync()
            samples.append(time.perf_counter() - start)
        flow.comm.barrier()
        return samples[_WARM_UP:], result


class _Graph(flow.nn.Graph):
    def __init__(self, body: Body) -> None:
        super().__init__()
        self._body = body

    def build(self, *inputs: Any) -> Any:
        return self._body(*inputs)


@dataclass(frozen=True)
class _Case:
    """One collective in all groups of `group_size` ranks at once; `steps` boxings in a chain.

    `size_bytes` is the n of perfmodel.collectives. `steps` is even for an all-to-all.
    """

    collective: str
    group_size: int
    size_bytes: float
    steps: int

    @property
    def shape(self) -> tuple[int, int]:
        """Return rows and columns of a group's tensor: about square, divisible by the group.

        n is the local send buffer of an all-to-all, so its tensor is `group_size` times as large.
        """
        share = self.group_size if self.collective == ALL_TO_ALL else 1
        return near_square(self.size_bytes * share / ITEM_BYTES, self.group_size)

    @property
    def true_size_bytes(self) -> float:
        """Return the n of the tensor that `shape` describes."""
        share = self.group_size if self.collective == ALL_TO_ALL else 1
        return math.prod(self.shape) * ITEM_BYTES / share


def near_square(elements: float, group_size: int) -> tuple[int, int]:
    """Return two multiples of `group_size` whose product is close to `elements`."""
    rows = max(1, round(elements**0.5 / group_size)) * group_size
    columns = max(1, round(elements / rows / group_size)) * group_size
    return rows, columns


def _chain(watch: Stopwatch, case: _Case) -> list[float]:
    """Return the seconds of each call of the chain of `case`.

    Raises:
        RuntimeError: the chain did not return what it was given.
    """
    states = _STATES[case.collective]
    rows, columns = case.shape
    groups = flow.env.get_world_size() // case.group_size
    mesh = _mesh(groups, case.group_size)
    x = _full((groups, rows, columns), 1.0 / rows, mesh, states.x)
    s = _full((groups, 1, 1), 1.0, mesh, states.s)
    body = _body(case)
    samples, result = watch.calls(lambda x, s: body(x, s, lambda t, to: _box(t, mesh, to)), (x, s))
    _check_unchanged(case.collective, result, x if case.collective == ALL_TO_ALL else s)
    return samples


def _twin(watch: Stopwatch, case: _Case) -> list[float]:
    """Return the seconds of each call of the twin: the local kernels of the chain of `case`.

    Chains whose kernels have as much to do share one twin.
    """
    cut = case.group_size if _STATES[case.collective].x == "S1" else 1
    elements = math.prod(case.shape) // cut
    relay = case.collective != ALL_TO_ALL
    key = (relay, round(math.log2(elements)), case.steps)
    if key not in watch.twins:
        rows, columns = near_square(elements, 1)
        mesh = _mesh(1, flow.env.get_world_size())
        x = _full((1, rows, columns), 1.0 / rows, mesh, "B")
        s = _full((1, 1, 1), 1.0, mesh, "B")
        body = _body(case)
        watch.twins[key] = watch.calls(lambda x, s: body(x, s, lambda t, to: t), (x, s))[0]
    return watch.twins[key]


def _body(case: _Case) -> Callable[[Any, Any, Box], Any]:
    target = _STATES[case.collective].target
    return _exchange(case.steps) if case.collective == ALL_TO_ALL else _relay(case.steps, target)


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


def _mesh(groups: int, group_size: int) -> Any:
    ranks = np.arange(groups * group_size)
    return flow.placement(
        "cpu", (ranks.reshape(groups, group_size) if groups > 1 else ranks).tolist()
    )


def _nd_sbp(mesh: Any, state: str) -> list[Any]:
    """Return the state of the measured, inner axis; an outer axis cuts dim 0."""
    one = {"B": flow.sbp.broadcast, "P": flow.sbp.partial_sum}
    inner = one[state] if state in one else flow.sbp.split(int(state[1:]))
    return [flow.sbp.split(0), inner] if len(mesh.ranks.shape) == 2 else [inner]


def _box(tensor: Any, mesh: Any, state: str) -> Any:
    return tensor.to_global(placement=mesh, sbp=_nd_sbp(mesh, state))


def _full(shape: Sequence[int], value: float, mesh: Any, state: str) -> Any:
    whole = [flow.sbp.broadcast] * len(mesh.ranks.shape)
    return _box(flow.full(shape, value, placement=mesh, sbp=whole), mesh, state)


def _replicated(array: np.ndarray, mesh: Any) -> Any:
    return flow.tensor(array.astype(np.float32), placement=mesh, sbp=[flow.sbp.broadcast])


def _check_unchanged(collective: str, result: Any, given: Any) -> None:
    mesh = given.placement
    whole = [flow.sbp.broadcast] * len(mesh.ranks.shape)
    got, sent = (t.to_global(placement=mesh, sbp=whole).to_local().numpy() for t in (result, given))
    if not np.allclose(got, sent, rtol=1e-3):
        raise RuntimeError(
            f"a chain of {collective} turned {sent.flat[0]} into {got.flat[0]}: the engine's "
            "boxing is wrong; report it with the versions of OneFlow and autoddl"
        )


def main(folder: Path) -> None:
    """Run the cases of folder/task.json; write rank<k>.json and, on rank 0, lines of progress."""
    task = json.loads((folder / "task.json").read_text())
    rank = flow.env.get_rank()
    links, device = [], {}
    watch = Stopwatch(task["mode"], task["repetitions"])
    with (folder / "progress").open("a") as progress:
        for case in (_Case(**values) for values in task["cases"]):
            links.append(
                {
                    "collective": case.collective,
                    "group_size": case.group_size,
                    "size_bytes": case.true_size_bytes,
                    "steps": case.steps,
                    "chain_s": _chain(watch, case),
                    "twin_s": _twin(watch, case),
                }
            )
            _tell(progress, rank, f"{case.collective} over {case.group_size} ranks")
        if task["device"]:
            mesh = _mesh(1, flow.env.get_world_size())
            for name, chain in device_chains.chains().items():
                inputs = [_replicated(array, mesh) for array in chain.inputs]
                chain_s, twin_s = (watch.calls(body, inputs)[0] for body in chain.bodies())
                device[name] = {
                    "chain_s": chain_s,
                    "twin_s": twin_s,
                    "steps": chain.steps,
                    "flops": chain.flops,
                    "moved_bytes": chain.moved_bytes,
                }
                _tell(progress, rank, f"device: {name}")
    (folder / f"rank{rank}.json").write_text(json.dumps({"links": links, "device": device}))
    flow.comm.barrier()


def _tell(progress: Any, rank: int, text: str) -> None:
    if rank == 0:
        progress.write(text + "\n")
        progress.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
