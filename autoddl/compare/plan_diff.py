"""What differs between two plans of one program: settings, states layer by layer, predictions.

Nothing is priced again, so plans of any kind can be compared: with stages, halves, on devices of several
kinds. Plans of another batch of the same model are of the same program here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from autoddl.errors import AutoDDLError, shown
from autoddl.explain.layer_rows import GRAPH, joined, main_ops, modules_of
from autoddl.explain.words import words_of
from autoddl.perfmodel.pipeline.schedules import CREDITS
from autoddl.plan.parts import Estimate, Part
from autoddl.plan.value import OWN, PlanValue
from autoddl.sbp.program import Op, Program
from autoddl.sbp.program.blocks import pattern
from autoddl.sbp.program.ops_and_tensors import AGAIN
from autoddl.sbp.rewrites.micro_batch import batch_of
from autoddl.sbp.rewrites.recomputed_layers import ops_again
from autoddl.sbp.state import B, NdSbp
from autoddl.units import bytes_text, runs_text

TASKS = "order of tasks"


@dataclass(frozen=True)
class PlanSetting:
    """Something that plans are made for or with: what it is in both, as text."""

    name: str
    first: str
    second: str


@dataclass(frozen=True)
class LayerSide:
    """What one plan does in some modules: in words, the states of an op, and what all of them cost."""

    words: str
    signature: str
    compute_s: float
    communication_s: float
    memory_bytes: int


@dataclass(frozen=True)
class LayerDiff:
    """Modules in which two plans differ in the same way: in the states of so many `ops` of each."""

    modules: tuple[str, ...]
    ops: int
    first: LayerSide
    second: LayerSide

    @property
    def name(self) -> str:
        """Return the modules as one text."""
        return joined(self.modules)


@dataclass(frozen=True)
class PlanDiff:
    """What differs between two plans; `estimates` are those of both, whether they differ or not."""

    settings: tuple[PlanSetting, ...]
    layers: tuple[LayerDiff, ...]
    estimates: tuple[Estimate, Estimate]

    @property
    def is_empty(self) -> bool:
        """Tell whether the plans are the same."""
        first, second = self.estimates
        return not self.settings and not self.layers and first == second

    def to_json(self) -> Any:
        """Return it as plain values."""
        return msgspec.to_builtins(
            {"settings": self.settings, "layers": self.layers, "estimates": self.estimates}
        )

    def in_words(self, but: Collection[str] = ()) -> str:
        """Return what differs in one line, `but` for some settings."""
        told = [
            f"{each.name} {each.second}, not {each.first}"
            for each in self.settings
            if each.name not in but
        ]
        if self.layers:
            modules = sum(len(layer.modules) for layer in self.layers)
            several = f"{modules} modules have" if modules > 1 else f"{self.layers[0].name} has"
            told.append(f"{several} other states")
        return "; ".join(told) or "the same states"


def diff(first: PlanValue, second: PlanValue) -> PlanDiff:
    """Return what differs between two plans of one program.

    Raises:
        AutoDDLError: they are of different programs; names what differs.
    """
    if not isinstance(second, PlanValue):
        raise AutoDDLError(f"diff: got {shown(second, 100)}; allowed is a plan of autoddl.load")
    _check_same_model(first, second)
    ours, theirs = _settings(first), _settings(second)
    settings = [
        PlanSetting(name, told, theirs[name]) for name, told in ours.items() if told != theirs[name]
    ]
    settings += _orders(first, second)
    return PlanDiff(
        tuple(settings), tuple(_layers(first, second)), (first.estimate, second.estimate)
    )


def _check_same_model(first: PlanValue, second: PlanValue) -> None:
    """Raise AutoDDLError where plans are not of one model, on whatever batch and however rewritten."""
    one, other = first.program, second.program
    prints = f"fingerprints {one.fingerprint} and {other.fingerprint}"

    def refused(what: str) -> AutoDDLError:
        return AutoDDLError(
            f"diff: plans of different programs ({prints}): {what}; give two of one"
        )

    if one.device != other.device:
        raise refused(f"for {one.device} and for {other.device} devices, whose ops differ")
    shapes, theirs = (_parameters(program) for program in (one, other))
    for name in sorted({*shapes, *theirs}):
        if shapes.get(name) != theirs.get(name):
            told = [f"has shape {s[name]}" if name in s else "is missing" for s in (shapes, theirs)]
            raise refused(
                f"parameter {shown(name, 80)} {told[0]} in the first and {told[1]} in the second"
            )
    modules, others = ({m: _names(o) for m, o in modules_of(p).items()} for p in (one, other))
    for name in sorted({*modules, *others}):
        if not modules.get(name, set()) & others.get(name, set()):
            raise refused(f"module {shown(name, 80)} has other ops")


def _parameters(program: Program) -> dict[str, tuple[int, ...]]:
    return {p.tensor: program.tensor[p.tensor].shape for p in program.parameters}


def _names(ops: Sequence[Op]) -> set[str]:
    return {op.name for op in ops}


def samples_of(plan: PlanValue) -> int | None:
    """Return the samples of a step: of all micro-batches, and both halves."""
    batch = batch_of(plan.program)
    return None if batch is None else batch * plan.micro_batches * (2 if plan.duplex else 1)


def _settings(plan: PlanValue) -> Mapping[str, str]:
    """Return what a plan is made for and with, as texts by name."""
    program, limit, queue = plan.program, plan.memory_limit_bytes, plan.queue
    again = [str(n) for n, part in enumerate(plan.parts) if part.recomputed]
    launches = "-" if queue is None else f"{queue.threshold_mb} MiB, {queue.max_ops} collectives"
    return {
        "batch": str(samples_of(plan) or "-"),
        "devices": plan.devices_text,
        "kinds": "; ".join(" ".join(part.kinds) for part in plan.parts if part.kinds) or "-",
        "stages": str(len(plan.parts)),
        "first module of each stage": ", ".join(map(_begin, plan.parts)),
        "ranks of each stage": "; ".join(runs_text(part.ranks) for part in plan.parts),
        "micro-batches": str(plan.micro_batches),
        "micro-batches in flight": ", ".join(str(part.in_flight) for part in plan.parts),
        "halves": _yes(plan.duplex),
        "compute stream": _yes(plan.compute_stream),
        "launches": launches,
        "ops computed again": str(len(ops_again(program))),
        "stages computed again": ", ".join(again) or "-",
        "memory limit": "-" if limit is None else bytes_text(limit),
        "profile": plan.profile,
        "engine": plan.engine.name or "none",
        "objective": plan.search.objective,
        "search": plan.search.solver,
        "order of ops": _order(plan),
    }


def _orders(first: PlanValue, second: PlanValue) -> Iterator[PlanSetting]:
    """Yield in which order both do their tasks, where they keep one; of their own, where these part."""
    if any(len(p.parts) == 1 or p.engine.schedule == CREDITS for p in (first, second)):
        return
    names = first.order_name, second.order_name
    if names[0] != names[1]:
        yield PlanSetting(TASKS, *names)
    elif names[0] == OWN:
        for stage, pair in enumerate(zip(first.tasks.texts, second.tasks.texts, strict=False)):
            for one, other in zip(*(text.split() for text in pair), strict=False):
                if one != other:
                    yield PlanSetting(TASKS, *(f"stage {stage}: … {t} …" for t in (one, other)))
                    return


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _begin(part: Part) -> str:
    """Return the module with which a stage begins."""
    program, own = part.layout.program, part.layout.signatures
    ops = (op for op in program.ops if op.phase == "forward" and op.name in own)
    return next((op.module for op in ops if op.module), GRAPH)


def _order(plan: PlanValue) -> str:
    """Return how many ops wait for others, so that all come in another order."""
    waiting = sum(len(part.layout.after) for part in plan.parts)
    return f"{waiting} ops wait for others" if waiting else "as they are ready"


def _layers(first: PlanValue, second: PlanValue) -> Iterator[LayerDiff]:
    """Yield the modules whose ops have other states, those that differ alike together."""
    states = _states(first), _states(second)
    modules, others = modules_of(first.program), modules_of(second.program)
    keys = {name: None for name in (*modules, *others)}
    every = [_by_module(plan) for plan in (first, second)]
    alike: dict[tuple[Any, ...], list[str]] = {}
    for name in keys:
        known = {**every[0].get(name, {}), **every[1].get(name, {})}
        differ = sorted(op for op in known if states[0].get(op) != states[1].get(op))
        if not differ:
            continue
        sides = [
            _told(plan, own[name], differ) for plan, own in ((first, modules), (second, others))
        ]
        alike.setdefault((pattern(name), len(differ), *sides), []).append(name)
    costs = [_costs(plan) for plan in (first, second)]
    for (_, count, *sides), names in alike.items():
        one, other = (
            LayerSide(
                *told, *(sum(each) for each in zip(*(c.get(n, _FREE) for n in names), strict=True))
            )
            for told, c in zip(sides, costs, strict=True)
        )
        yield LayerDiff(tuple(names), count, one, other)


_FREE = (0.0, 0.0, 0)


def _states(plan: PlanValue) -> Mapping[str, tuple[Any, ...]]:
    """Return the states of ops and parameters by name, with the mesh that they are on.

    What is whole on every device is the same on any mesh.
    """

    def on(mesh: str, states: Mapping[str, NdSbp]) -> tuple[Any, ...]:
        cut = any(entry != B for state in states.values() for entry in state)
        return (mesh, *sorted((o, str(s)) for o, s in states.items())) if cut else ()

    found = dict[str, tuple[Any, ...]]()
    for part in plan.parts:
        mesh, layout = part.mesh.describe(), part.layout
        found |= {op: on(mesh, signature) for op, signature in layout.signatures.items()}
        for kept in (layout.variables, layout.inputs):
            found |= {name: on(mesh, {"": state}) for name, state in kept.items()}
    return found


def _by_module(plan: PlanValue) -> Mapping[str, Mapping[str, None]]:
    """Return by module the names of its ops, in all passes, and of its parameters."""
    found: dict[str, dict[str, None]] = {}
    forward = modules_of(plan.program)
    for op in plan.program.ops:
        module = op.module or GRAPH
        found.setdefault(module if module in forward else GRAPH, {})[op.name] = None
    for parameter in plan.program.parameters:
        module = parameter.tensor.rpartition(".")[0]
        own = found.setdefault(module if module in forward else GRAPH, {})
        own |= dict.fromkeys((parameter.tensor, *parameter.states))
    found[GRAPH] = {**found.get(GRAPH, {}), **dict.fromkeys(plan.program.inputs)}
    return found


def _told(plan: PlanValue, ops: Sequence[Op], differ: Sequence[str]) -> tuple[str, str]:
    """Return what a plan does in a module in words, and the states of the first thing that differs."""
    main = main_ops(plan.program, ops)[0]
    mesh = plan.parts[plan.stage_of[main.name]].mesh
    words = str(words_of(plan.program, main, plan.signatures[main.name], mesh, plan.variables))
    names = set(differ)
    first = main.name if main.name in names else next((n for n in differ if n in plan.stage_of), "")
    return words, _signature(plan, first)


def _signature(plan: PlanValue, name: str) -> str:
    """Return the states of an op or parameter; "" for what the plan has not."""
    if name in plan.signatures:
        op, states = plan.program.op[name], plan.signatures[name]
        ins, outs = ([str(states[o]) for o, _ in side] for side in (op.inputs, op.outputs))
        again = " again" if name.startswith(AGAIN) else ""
        return f"{op.type}{again}: {' × '.join(ins)} → {', '.join(outs)}"
    if name in plan.layout.inputs:
        return f"input {name.removeprefix('input.')} read as {plan.layout.inputs[name]}"
    leaf, kept = name.rpartition(".")[2], plan.variables
    return f"{leaf} kept as {kept[name]}" if name in kept else ""


def _costs(plan: PlanValue) -> Mapping[str, tuple[float, float, int]]:
    """Return the seconds and bytes of each module, those of all stages together."""
    found: dict[str, tuple[float, float, int]] = {}
    for row in plan.rows:
        before = found.get(row.module, _FREE)
        found[row.module] = (
            before[0] + row.compute_s, before[1] + row.communication_s,
            before[2] + row.memory_bytes,
        )  # fmt: skip
    return found
