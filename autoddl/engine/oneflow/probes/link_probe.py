"""Measure cases and the device on every rank; the rank program of fit-network.

Rank 0 reads the task and tells it to all, so that other nodes need nothing but the same command. It
appends a line to results.jsonl for every case that is done: what a crash ends is not lost.
"""

from __future__ import annotations

import faulthandler
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

_START_S = 180.0  # for the ranks to find each other
_HANG_S = 60.0  # a case that takes longer than planned, besides a few slow calls, hangs
_SLOWEST_BYTES_PER_S = 5e6
_SLOW_CALLS = 8
_DEVICE_S, _QUICK_DEVICE_S = 2.0, 0.4  # for each of the device's chains
_DEVICE_PAIRS = 15
_DEVICE_HANG_S = 120.0
_OVERLAP_S, _QUICK_OVERLAP_S = 8.0, 2.0  # for each case, besides the budget
_OVERLAP_HANG_S = 120.0

# Before the engine is loaded: where another node's rank dies, ours wait for ever in C++.
if __name__ == "__main__":
    faulthandler.dump_traceback_later(_START_S, exit=True)

import msgspec  # noqa: E402
import numpy as np  # noqa: E402
import oneflow as flow  # noqa: E402

from autoddl.calibrate.network.link_cases import CollectiveCase, LinkTask, Timing  # noqa: E402
from autoddl.engine.oneflow.probes import boxing_chains, device_chains, overlap_chains  # noqa: E402
from autoddl.engine.oneflow.probes.estimates import timing_of  # noqa: E402
from autoddl.engine.oneflow.probes.rank_groups import RankGrid  # noqa: E402
from autoddl.engine.oneflow.probes.stopwatch import (  # noqa: E402
    LEAST_PAIRS,
    Effort,
    Floats,
    Program,
    call,
    function_of,
    of_all_ranks,
    report,
    turns,
)
from autoddl.engine.oneflow.run.agree import text_of_rank_0  # noqa: E402

MakeProgram = Callable[[CollectiveCase, RankGrid], boxing_chains.ChainProgram]


class _Measuring:
    """The cases of one launch, in one or more passes, with a share of the time left for each."""

    def __init__(self, task: LinkTask, folder: Path) -> None:
        self.task, self.settings, self.folder = task, task.settings, folder
        self.cluster = RankGrid(self.settings.nnodes, self.settings.nproc_per_node)
        self.least = -(-LEAST_PAIRS // self.settings.passes)
        self.programs: dict[Any, Program] = {}  # by case, or what twins have in common
        self.devices: dict[str, tuple[Program, Program]] = {}
        self.taken: dict[Any, list[Floats]] = defaultdict(list)  # by case, or chain of the device
        self.begin_s = time.perf_counter()
        self.device_s = 0.0  # that the device took, besides the budget

    def run(self) -> None:
        """Measure everything; where a case hangs, end this process with exit code 1."""
        passes = self.settings.passes
        left = passes * sum(case.weight for case in self.task.cases)
        for number in range(passes):
            for case in self.task.cases:
                spent_s = _longest_s(self.begin_s) - self.device_s
                limit_s = max(0.0, self.task.budget_s - spent_s) * case.weight / left
                left -= case.weight
                moved = case.steps * case.size_bytes * case.group_size * case.groups
                slow_s = _SLOW_CALLS * moved / _SLOWEST_BYTES_PER_S
                faulthandler.dump_traceback_later(_HANG_S + limit_s + slow_s, exit=True)
                report(self.folder, {"row": self.row(case, limit_s)})
            if self.task.device:
                faulthandler.dump_traceback_later(_HANG_S + _DEVICE_HANG_S, exit=True)
                begin_s = time.perf_counter()
                found = self.device()
                self.device_s += _longest_s(begin_s)
                if number == passes - 1:
                    report(self.folder, {"device": found})
        for overlap in self.task.overlaps:
            faulthandler.dump_traceback_later(_HANG_S + _OVERLAP_HANG_S, exit=True)
            limit_s = _QUICK_OVERLAP_S if self.settings.quick else _OVERLAP_S
            timing = overlap_chains.timed(overlap, self.cluster, limit_s)
            report(self.folder, {"overlap": timing})

    def row(self, case: CollectiveCase, limit_s: float) -> Timing:
        """Measure one case in about `limit_s` seconds, building its programs included.

        The row has the repetitions of earlier passes, too.
        """
        begin_s = time.perf_counter()
        known = case in self.programs
        chain = self.built(case, case, boxing_chains.chain, case.collective)
        key = (case.mode, *boxing_chains.twin_key(case, self.cluster))
        twin = self.built(key, case, boxing_chains.twin, "nothing")
        used_s = _longest_s(begin_s)
        warm_up = min(1, self.settings.warm_up) if known else self.settings.warm_up
        so_far = sum(map(len, self.taken[case]))
        most = max(1, self.settings.iterations - so_far)
        taken = self.timed(case, chain, twin, Effort(most, warm_up, limit_s - used_s, self.least))
        return timing_of(case, boxing_chains.true_size_bytes(case), taken)

    def built(self, key: Any, case: CollectiveCase, make: MakeProgram, what: str) -> Program:
        """Return a program of a case; the first time call it, which compiles a graph, and check it."""
        if key not in self.programs:
            program = make(case, self.cluster)
            function = function_of(program.body, case.mode)
            _, result = call(function, program.inputs)
            boxing_chains.check_unchanged(what, result, program.expected)
            self.programs[key] = function, program.inputs
        return self.programs[key]

    def timed(self, key: Any, chain: Program, twin: Program, effort: Effort) -> Floats:
        """Return the seconds of chain and twin, [repetitions, 2], those of earlier passes too."""
        self.taken[key].append(turns((chain, twin), effort))
        return np.concatenate(self.taken[key])

    def device(self) -> dict[str, Any]:
        """Measure the device's chains, all ranks at work; with the repetitions of earlier passes."""
        limit_s = (_QUICK_DEVICE_S if self.settings.quick else _DEVICE_S) / self.settings.passes
        effort = Effort(_DEVICE_PAIRS, 1, limit_s, self.least)
        found = {}
        for name, chain in device_chains.chains().items():
            if name not in self.devices:
                self.devices[name] = self.of_device(chain)
            taken = self.timed(name, *self.devices[name], effort)
            found[name] = {
                "chain_s": taken[:, 0].tolist(),
                "twin_s": taken[:, 1].tolist(),
                "steps": chain.steps,
                "flops": chain.flops,
                "moved_bytes": chain.moved_bytes,
            }
        return found

    def of_device(self, chain: device_chains.OpChain) -> tuple[Program, Program]:
        """Return the programs of a chain of the device, called once."""
        mesh = flow.placement("cpu", self.cluster.ranks.ravel().tolist())
        inputs = [
            flow.tensor(array.astype(np.float32), placement=mesh, sbp=flow.sbp.broadcast)
            for array in chain.inputs
        ]
        mode = self.settings.modes[0]
        first, second = ((function_of(body, mode), inputs) for body in chain.bodies())
        for program in (first, second):
            call(*program)
        return first, second


def _longest_s(begin_s: float) -> float:
    """Return the time since a rank's own `begin_s`, of the rank for which it is longest."""
    return float(of_all_ranks([time.perf_counter() - begin_s]).max())


def main(folder: Path) -> None:
    """Carry out folder/task.json of rank 0; outcome.json tells each node whether more is to come."""
    text = (folder / "task.json").read_text() if flow.env.get_rank() == 0 else ""
    task = msgspec.json.decode(text_of_rank_0(text), type=LinkTask)
    _Measuring(task, folder).run()
    (folder / "outcome.json").write_text(json.dumps({"more": task.more}))
    flow.comm.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
