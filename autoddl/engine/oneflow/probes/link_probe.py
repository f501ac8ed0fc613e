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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_START_S = 180.0  # for the ranks to find each other
_HANG_S = 60.0  # a case that takes longer than planned, besides a few slow calls, hangs
_SLOWEST_BYTES_PER_S = 5e6
_SLOW_CALLS = 8

# Before the engine is loaded: where another node's rank dies, ours wait for ever in C++.
if __name__ == "__main__":
    faulthandler.dump_traceback_later(_START_S, exit=True)

import numpy as np  # noqa: E402
import oneflow as flow  # noqa: E402

from autoddl.calibrate.network.link_cases import CollectiveCase, RankGrid, Timing, timing_of  # noqa: E402
from autoddl.engine.oneflow.probes import boxing_chains, device_chains  # noqa: E402
from autoddl.engine.oneflow.probes.stopwatch import (  # noqa: E402
    LEAST_PAIRS,
    Effort,
    Floats,
    Function,
    call,
    function_of,
    of_all_ranks,
    pairs,
)
from autoddl.engine.oneflow.run.agree import text_of_rank_0  # noqa: E402

Call = tuple[Function, Sequence[Any]]


class _Measuring:
    """The cases of one launch, in one or more passes, with a share of the time left for each."""

    def __init__(self, task: dict[str, Any], folder: Path) -> None:
        self.task = task
        self.cluster = RankGrid(*task["cluster"])
        self.cases = [CollectiveCase(**values) for values in task["cases"]]
        self.least = -(-LEAST_PAIRS // task["passes"])
        self.chains: dict[CollectiveCase, Call] = {}
        self.twins: dict[Any, Call] = {}
        self.devices: dict[str, tuple[Call, Call]] = {}
        self.taken: dict[Any, list[Floats]] = defaultdict(list)  # by case, or chain of the device
        self.begin_s = time.perf_counter()
        self.device_s = 0.0  # that the device took, besides the budget
        self.results = folder / "results.jsonl" if flow.env.get_rank() == 0 else None

    def run(self) -> None:
        """Measure everything; where a case hangs, end this process with exit code 1."""
        passes = self.task["passes"]
        left = passes * sum(case.weight for case in self.cases)
        for number in range(passes):
            for case in self.cases:
                spent_s = float(of_all_ranks([time.perf_counter() - self.begin_s]).max())
                spent_s -= self.device_s
                limit_s = max(0.0, self.task["budget_s"] - spent_s) * case.weight / left
                left -= case.weight
                moved = case.steps * case.size_bytes * case.group_size * case.groups
                slow_s = _SLOW_CALLS * moved / _SLOWEST_BYTES_PER_S
                faulthandler.dump_traceback_later(_HANG_S + limit_s + slow_s, exit=True)
                self.tell({"row": self.row(case, limit_s).to_json()})
            if self.task["device"]:
                faulthandler.dump_traceback_later(_HANG_S + 120.0, exit=True)
                begin_s = time.perf_counter()
                found = self.device()
                self.device_s += float(of_all_ranks([time.perf_counter() - begin_s]).max())
                if number == passes - 1:
                    self.tell({"device": found})

    def row(self, case: CollectiveCase, limit_s: float) -> Timing:
        """Measure one case in about `limit_s` seconds, building its programs included.

        The row has the repetitions of earlier passes, too.
        """
        begin_s = time.perf_counter()
        known = case in self.chains
        if not known:
            made = boxing_chains.chain(case, self.cluster)
            self.chains[case] = self.built(case.collective, case.mode, made)
        key = (case.mode, *boxing_chains.twin_key(case, self.cluster))
        if key not in self.twins:
            made = boxing_chains.twin(case, self.cluster)
            self.twins[key] = self.built("nothing", case.mode, made)
        used_s = float(of_all_ranks([time.perf_counter() - begin_s]).max())
        warm_up = min(1, self.task["warm_up"]) if known else self.task["warm_up"]
        so_far = sum(map(len, self.taken[case]))
        most = max(1, self.task["iterations"] - so_far)
        effort = Effort(most, warm_up, limit_s - used_s, self.least)
        self.taken[case].append(pairs(self.chains[case], self.twins[key], effort))
        taken = np.concatenate(self.taken[case])
        return timing_of(case, boxing_chains.true_size_bytes(case), taken)

    def built(self, what: str, mode: str, program: boxing_chains.ChainProgram) -> Call:
        """Call a program once, which compiles a graph, and check what it returns."""
        function = function_of(program.body, mode)
        _, result = call(function, program.inputs)
        boxing_chains.check_unchanged(what, result, program.expected)
        return function, program.inputs

    def device(self) -> dict[str, Any]:
        """Measure the device's chains, all ranks at work; with the repetitions of earlier passes."""
        passes = self.task["passes"]
        effort = Effort(15, 1, self.task["device_s"] / passes, self.least)
        found = {}
        for name, chain in device_chains.chains().items():
            if name not in self.devices:
                self.devices[name] = self.of_device(chain)
            self.taken[name].append(pairs(*self.devices[name], effort))
            taken = np.concatenate(self.taken[name])
            found[name] = {
                "chain_s": taken[:, 0].tolist(),
                "twin_s": taken[:, 1].tolist(),
                "steps": chain.steps,
                "flops": chain.flops,
                "moved_bytes": chain.moved_bytes,
            }
        return found

    def of_device(self, chain: device_chains.OpChain) -> tuple[Call, Call]:
        """Return the programs of a chain of the device, called once."""
        mesh = flow.placement("cpu", list(range(self.cluster.ranks)))
        inputs = [boxing_chains.replicated(array, mesh) for array in chain.inputs]
        mode = self.task["device_mode"]
        first, second = ((function_of(body, mode), inputs) for body in chain.bodies())
        for program in (first, second):
            call(*program)
        return first, second

    def tell(self, line: dict[str, Any]) -> None:
        """Let the parent know, on rank 0."""
        if self.results is not None:
            with self.results.open("a") as file:
                file.write(json.dumps(line) + "\n")


def main(folder: Path) -> None:
    """Carry out folder/task.json of rank 0; outcome.json tells each node whether more is to come."""
    text = (folder / "task.json").read_text() if flow.env.get_rank() == 0 else ""
    task = json.loads(text_of_rank_0(text))
    _Measuring(task, folder).run()
    (folder / "outcome.json").write_text(json.dumps({"more": task["more"]}))
    flow.comm.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
