"""What a plan does, module by module in words; equal modules of a stack of layers have one row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoddl.explain.words import words_of
from autoddl.perfmodel.roofline import OpWork
from autoddl.plan.parts import ModuleCost
from autoddl.plan.value import PlanValue
from autoddl.sbp.program import Op, Program
from autoddl.sbp.program.blocks import pattern
from autoddl.sbp.rules.registry import find
from autoddl.units import runs_text

GRAPH = "(graph)"  # of ops outside of all modules
MAIN = ("matmul", "conv", "embedding")  # families of ops that modules are there for
MOST_TOLD = 30  # characters of the numbers of layers


@dataclass(frozen=True)
class LayerRow:
    """Modules of a stage that do the same: their main op, what it does in words, what all of them cost.

    Without stages the `stage` is 0.
    """

    modules: tuple[str, ...]
    op_type: str
    words: str
    compute_s: float
    communication_s: float
    memory_bytes: int
    stage: int = 0

    @property
    def name(self) -> str:
        """Return the modules as one text: "model.blocks.0 … 23.fc1 (24 times)"."""
        return joined(self.modules)


def joined(modules: Sequence[str]) -> str:
    """Return modules of one pattern as one text, with their numbers where one differs."""
    if len(modules) == 1:
        return modules[0]
    rows, times = [name.split(".") for name in modules], f"({len(modules)} times)"
    differ = [n for n, column in enumerate(zip(*rows, strict=True)) if len(set(column)) > 1]
    if len(differ) == 1:
        (place,) = differ
        numbers = [int(row[place]) for row in rows]
        whole = numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        told = f"{numbers[0]} … {numbers[-1]}" if whole else f"[{runs_text(numbers)}]"
        if len(told) <= MOST_TOLD:
            return f"{'.'.join([*rows[0][:place], told, *rows[0][place + 1 :]])} {times}"
    return f"{pattern(modules[0])} {times}"


def modules_of(program: Program) -> Mapping[str, Sequence[Op]]:
    """Return the ops of the forward pass by module."""
    found = defaultdict[str, list[Op]](list)
    for op in program.ops:
        if op.phase == "forward":
            found[op.module or GRAPH].append(op)
    return found


def main_ops(program: Program, ops: Iterable[Op]) -> list[Op]:
    """Return the ops that a module is there for, most work first: its products, else the largest op."""
    every = sorted(ops, key=lambda op: _work(program, op), reverse=True)
    rules = [(op, find(op.type)) for op in every]
    return [op for op, rule in rules if rule is not None and rule.family in MAIN] or every[:1]


def _work(program: Program, op: Op) -> tuple[float, float]:
    tensors = {operand: program.tensor[name] for operand, name in op.operands}
    work = OpWork.local(op, tensors, [t.shape for t in tensors.values()])
    return work.flops, work.moved_bytes


def layer_rows(plan: PlanValue) -> tuple[LayerRow, ...]:
    """Return a row for each distinct module of a plan, stage by stage, in the order of the program."""
    program = plan.program
    alike: dict[tuple[int, str, str, str], list[str]] = {}
    for module, ops in modules_of(program).items():
        by_stage = defaultdict[int, list[Op]](list)
        for op in ops:
            by_stage[plan.stage_of[op.name]].append(op)
        for stage, own in by_stage.items():
            op, part = main_ops(program, own)[0], plan.parts[stage]
            signature = part.layout.signatures[op.name]
            words = words_of(program, op, signature, part.mesh, part.layout.variables)
            key = stage, pattern(module), op.type, str(words)
            alike.setdefault(key, []).append(module)
    costs = [{row.module: row for row in part.rows} for part in plan.parts]
    return tuple(
        _row(
            stage, modules, op_type, words, [costs[stage][m] for m in modules if m in costs[stage]]
        )
        for (stage, _, op_type, words), modules in sorted(
            alike.items(), key=lambda item: item[0][0]
        )
    )


def _row(
    stage: int, modules: Sequence[str], op_type: str, words: str, costs: Sequence[ModuleCost]
) -> LayerRow:
    return LayerRow(
        tuple(modules), op_type, words,
        sum(each.compute_s for each in costs), sum(each.communication_s for each in costs),
        sum(each.memory_bytes for each in costs), stage,
    )  # fmt: skip
