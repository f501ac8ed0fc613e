"""What Rhino's search finds, how long it takes and what it loses, beside exact search.

All is the sum of compute and communication of a step: nothing overlaps, as in the paper's model. Seconds
are those of the processor in a search, with the network there already.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import structs

from autoddl.errors import InfeasibleError
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.profile_entries import Device
from autoddl.sbp.mesh import Mesh
from autoddl.search import baselines
from autoddl.search.budget import Counter
from autoddl.search.exact import primal_dual as exact
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.reductions.saved_tensors import SavedTensors
from autoddl.search.result import SearchOptions, SearchResult
from autoddl.search.rivals.rhino import cones, largest, segments
from autoddl.search.rivals.rhino.critical import critical
from experiments.lib import oneflow_problems as problems
from experiments.lib.frames import Row
from experiments.lib.programs import captured

BASE = "v100-8x"
ZERO_2, DATA = "ZeRO 2", "data parallel"
Search = Callable[[CostNetwork, SearchOptions], SearchResult]


class Sized(NamedTuple):
    """A model of the zoo at a size, with what is other than there."""

    model: str
    size: str
    more: Mapping[str, Any] = {}

    def problem(self, mesh: str, folder: Path, profile: Profile | None = None) -> CostNetwork:
        """Return the problem of a training step with Adam on the profile's devices."""
        names = [str(value) for value in self.more.values()]
        file = folder / f"{'-'.join((self.model, self.size, *names))}.json"
        program = captured(file, self.model, self.size, **{**self.more, "optimizer": "adam"})
        profile = profile or profiles.load(BASE)
        return problems.build(replace(program, device="cuda"), Mesh.parse(mesh), profile)


def gpt(layers: int) -> Sized:
    """Return figure 10's GPT, with the four sequences of the paper's plans without stages."""
    return Sized("gpt", "gpt2_small", {"layers": layers, "width": 512, "heads": 8, "batch": 4})


COUNTED = {  # with the paper's instructions, critical nodes and subgraphs
    "GPT-72-Layers": (gpt(72), 76_000, 378, 377),
    "MoE-32E-10B": (Sized("bert_moe", "moe_32e_10b"), 18_000, 90, 89),
}
LIMITED = {
    "GPT-Medium": Sized("gpt", "medium", {"batch": 4}),
    "MoE-8E": Sized("bert_moe", "moe_8e_380m", {"batch": 8}),
    "VGG19-million": Sized("vgg19", "vgg19_million", {"batch": 512}),
}


def sizes_alone(profile: Profile) -> Profile:
    """Return a profile in which what each op and message takes anyway counts nothing, links little.

    Then what is small is worth cutting, too.
    """

    def light(device: Device) -> Device:
        kernels = {name: structs.replace(k, overhead_s=0.0) for name, k in device.kernels.items()}
        return structs.replace(device, op_overhead_s=0.0, kernels=kernels)

    links = tuple(
        structs.replace(
            link, alpha_s=1e-3 * link.alpha_s, beta_s_per_byte=0.1 * link.beta_s_per_byte
        )
        for link in profile.links
    )
    devices = {name: light(device) for name, device in profile.devices.items()}
    return structs.replace(profile, links=links, devices=devices)


def timed(search: Search, problem: CostNetwork, budget_s: float, name: str) -> Row:
    """Return the cost and the CPU seconds of a search; no cost where it did not end in its budget."""
    begin_s, clock_s = time.process_time(), time.perf_counter()
    found = search(problem, SearchOptions(budget=budget_s))
    seconds, over = time.process_time() - begin_s, time.perf_counter() - clock_s >= budget_s
    return {
        f"{name} cost_s": None if over else found.cost_s, f"{name} s": seconds,
        f"{name} gap": found.gap,
    }  # fmt: skip


def depth_row(layers: int, budget_s: float, folder: Path) -> Row:
    """Return costs and seconds of O2, O3 and exact search for a GPT of so many layers on two devices."""
    problem = gpt(layers).problem("2", folder)
    exact.search(problem, SearchOptions(budget=budget_s))  # inner loops are compiled once
    return {
        "ops": len(problem.program.ops),
        **timed(exact.search, problem, budget_s, "exact"),
        **timed(cones.search, problem, budget_s, cones.O3),
        **timed(segments.search, problem, budget_s, segments.O2),
    }


def loss_row(sized: Sized, mesh: str, budget_s: float, folder: Path) -> Row:
    """Return the costs of O3, by the paper's rule for cones, too, and of O2, beside exact search.

    O2 is for one axis alone: on two, critical nodes have dozens of choices, segments as many programs as
    their squares.
    """
    problem = sized.problem(mesh, folder, sizes_alone(profiles.load(BASE)))
    whole = [0] * len(problem)
    return {
        "nodes": len(problem), "cones": len(cones.Cones.apply(problem).kept),
        "roots": len(cones.Cones.apply(problem, by_root=True).kept),
        "replicated_s": problem.cost_s(whole),
        **timed(exact.search, problem, budget_s, "exact"),
        **timed(cones.search, problem, budget_s, cones.O3),
        **timed(partial(cones.search, by_root=True), problem, budget_s, "by root"),
        **(timed(segments.search, problem, budget_s, segments.O2) if problem.mesh.ndim == 1 else {}),
    }  # fmt: skip


def count_row(model: str, folder: Path) -> Row:
    """Return how many ops, critical nodes and segments between these a model has, and its roots."""
    sized, *printed = COUNTED[model]
    problem = sized.problem("2", folder)
    found = len(critical(problem.program))
    names = ("paper instructions", "paper critical", "paper segments")
    return {
        "ops": len(problem.program.ops), "critical": found, "segments": found - 1,
        "nodes": len(problem), "cones": len(cones.Cones.apply(problem).kept),
        "roots": len(cones.Cones.apply(problem, by_root=True).kept),
        **dict(zip(names, printed, strict=True)),
    }  # fmt: skip


def memory_row(model: str, percent: int, budget_s: float, folder: Path) -> Row:
    """Return what exact search, largest-k and ZeRO 2 cost within a part of data parallelism's memory.

    That is what is there between the two passes. What does not fit has no cost. The budget is counted in
    work, so that a busy machine ends the search nowhere else.
    """
    plain = LIMITED[model].problem("4", folder)
    saved = SavedTensors.apply(plain)
    problem, known = saved.network, baselines.assignments(plain)
    data, zero = (problem.costs(saved.as_read(known[name])) for name in (DATA, ZERO_2))
    limit = data[1] * percent // 100
    options = SearchOptions(budget=budget_s, memory_bytes=limit)
    row: Row = {
        "limit_bytes": limit, "data_s": data[0], "zero_s": zero[0] if zero[1] <= limit else None,
        "parameters": len(largest.largest(problem)),
        **dict.fromkeys(("exact_s", "gap", "k", "largest_s")),
    }  # fmt: skip
    with suppress(InfeasibleError):
        found = exact.search(problem, replace(options, clock=Counter()))
        row |= {"exact_s": found.cost_s, "gap": found.gap}
        forced = largest.smallest(problem, replace(options, clock=Counter()))
        row |= {"k": forced.k, "largest_s": forced.result.cost_s}
    return row
