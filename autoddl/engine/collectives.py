"""Measure cases and the device on every rank; the rank program that autoddl.fit_network starts.

Rank 0 reads the task and tells it to all, so that other nodes need nothing but the same command. It
appends a line to results.jsonl for every case that is done: what a crash ends is not lost.
"""

from __future__ import annotations

import faulthandler
import json
import sys
import time
from pathlib import Path
from typing import Any

_START_S = 180.0  # for the ranks to find each other
_HANG_S = 60.0  # a case that takes longer than planned, besides a few slow calls, hangs
_SLOWEST_BYTES_PER_S = 5e6
_SLOW_CALLS = 8

# Before the engine is loaded: where another node's rank dies, ours wait for ever in C++.
if __name__ == "__main__":
    faulthandler.dump_traceback_later(_START_S, exit=True)

import oneflow as flow  # noqa: E402

from autoddl.engine import boxing_chains, device_chains  # noqa: E402
from autoddl.engine.agree import text_of_rank_0  # noqa: E402
from autoddl.engine.cases import Case, Cluster, Row, row_of  # noqa: E402
from autoddl.engine.stopwatch import Effort, Function, call, function_of, of_all_ranks, pairs  # noqa: E402


class _Measuring:
    """The cases of one launch, with a share of the time that is left for each."""

    def __init__(self, task: dict[str, Any], folder: Path) -> None:
        self.task = task
        self.cluster = Cluster(*task["cluster"])
        self.cases = [Case(**values) for values in task["cases"]]
        self.twins: dict[Any, tuple[Function, tuple[Any, ...]]] = {}
        self.begin_s = time.perf_counter()
        self.results = folder / "results.jsonl" if flow.env.get_rank() == 0 else None

    def run(self) -> None:
        """Measure everything; where a case hangs, end this process with exit code 1."""
        for index, case in enumerate(self.cases):
            spent_s = float(of_all_ranks([time.perf_counter() - self.begin_s]).max())
            share = case.weight / sum(later.weight for later in self.cases[index:])
            limit_s = max(0.0, self.task["budget_s"] - spent_s) * share
            moved = case.steps * case.size_bytes * case.group_size * case.groups
            slow_s = _SLOW_CALLS * moved / _SLOWEST_BYTES_PER_S
            faulthandler.dump_traceback_later(_HANG_S + limit_s + slow_s, exit=True)
            self.tell({"row": self.row(case, limit_s).to_json()})
        if self.task["device"]:
            faulthandler.dump_traceback_later(_HANG_S + 120.0, exit=True)
            self.tell({"device": self.device()})

    def row(self, case: Case, limit_s: float) -> Row:
        """Measure one case in about `limit_s` seconds, building its programs included."""
        begin_s = time.perf_counter()
        chain = self.built(case.collective, case.mode, boxing_chains.chain(case, self.cluster))
        key = (case.mode, *boxing_chains.twin_key(case, self.cluster))
        if key not in self.twins:
            made = boxing_chains.twin(case, self.cluster)
            self.twins[key] = self.built("nothing", case.mode, made)
        used_s = float(of_all_ranks([time.perf_counter() - begin_s]).max())
        effort = Effort(self.task["iterations"], self.task["warm_up"], limit_s - used_s)
        taken = pairs(chain, self.twins[key], effort)
        return row_of(case, boxing_chains.true_size_bytes(case), taken)

    def built(
        self, what: str, mode: str, program: boxing_chains.Program
    ) -> tuple[Function, tuple[Any, ...]]:
        """Call a program once, which compiles a graph, and check what it returns."""
        function = function_of(program.body, mode)
        _, result = call(function, program.inputs)
        boxing_chains.check_unchanged(what, result, program.expected)
        return function, program.inputs

    def device(self) -> dict[str, Any]:
        """Measure the device's chains, all ranks at work."""
        mesh = flow.placement("cpu", list(range(self.cluster.ranks)))
        mode = self.task["device_mode"]
        found = {}
        for name, chain in device_chains.chains().items():
            inputs = [boxing_chains.replicated(array, mesh) for array in chain.inputs]
            programs = [(function_of(body, mode), inputs) for body in chain.bodies()]
            for program in programs:
                call(*program)
            taken = pairs(programs[0], programs[1], Effort(15, 1, self.task["device_s"]))
            found[name] = {
                "chain_s": taken[:, 0].tolist(),
                "twin_s": taken[:, 1].tolist(),
                "steps": chain.steps,
                "flops": chain.flops,
                "moved_bytes": chain.moved_bytes,
            }
        return found

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
