"""What each module of a program costs: the rows of a printed plan."""

from __future__ import annotations

from collections import defaultdict

from autoddl.perfmodel.pipeline.pipeline_step import BOXING, COMPUTE
from autoddl.plan.parts import ModuleCost
from autoddl.planner.stages.staged_assignment import STREAMS, Staged
from autoddl.sbp.layout import OUTPUT
from autoddl.sbp.program import Op
from autoddl.sbp.rules.candidates import NdSignature


def module_costs(staged: Staged, stage: int) -> tuple[ModuleCost, ...]:
    """Sum costs by module in one stage, for all micro-batches of a step.

    Communication counts for the module that wants the other state, that of boxings before a tensor is
    sent for the module that makes it. What is in no op of the program counts, too: the forward pass
    that is run again, copies into buffers, sums of gradients.
    """
    program, signatures = staged.program, staged.signatures
    updated = {p.update: p.tensor for p in program.parameters}

    def module(name: str) -> str:
        """Return that of an op, variable or input; of an update that of its parameter."""
        name = updated.get(name, name)
        if name in program.op:
            return program.op[name].module
        return "" if name in program.inputs or name == OUTPUT else name.rpartition(".")[0]

    mine = [item for item in staged.spent if item.stage == stage]
    seconds = {stream: defaultdict[str, float](float) for stream in STREAMS}
    for item in mine:
        seconds[item.stream][module(item.of[0])] += staged.times(item.phase) * item.seconds
    held = defaultdict[str, int](int)
    for maker, size, kind in staged.sizes():
        if staged.stage_of[maker] == stage:
            several = kind == "activation" and stage not in staged.recomputed
            held[module(maker)] += size * (staged.in_flight[stage] if several else 1)
    kind_of = stage, "forward", COMPUTE
    forward = [s for s in staged.planned if (s.stage, s.phase, s.stream) == kind_of]
    dearest_last = sorted(reversed(forward), key=lambda item: item.seconds)
    main = {module(item.of[0]): item.of[0] for item in dearest_last}
    return tuple(
        ModuleCost(
            name or "(graph)",
            _text(program.op[main[name]], signatures[main[name]]) if name in main else "",
            seconds[COMPUTE].get(name, 0.0),
            seconds[BOXING].get(name, 0.0),
            held.get(name, 0),
        )
        for name in dict.fromkeys((*seconds[COMPUTE], *seconds[BOXING], *held))
    )


def _text(op: Op, states: NdSignature) -> str:
    ins = " × ".join(str(states[o]) for o, _ in op.inputs)
    outs = ", ".join(str(states[o]) for o, _ in op.outputs)
    return f"{op.type}: {ins} → {outs}"
