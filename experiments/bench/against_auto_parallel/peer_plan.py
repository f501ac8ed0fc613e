"""A plan that OneFlow's auto-parallel chose, as it stands in the job, in autoddl's own terms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoddl.perfmodel.profile import Profile
from autoddl.sbp.layout import OUTPUT, Layout, Redistribution
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.state import NdSbp, broadcast
from experiments.lib.oneflow_problems import redistributor

Signatures = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class PeerPlan:
    """What rank 0 read from the job: the states of all operands, variables and inputs, as text.

    `build_s` are the seconds of building the graph with auto-parallel, `trace_s` those without,
    `processor_s` those of rank 0's own work in `build_s`, whatever else its core did meanwhile.
    """

    program: Program
    signatures: Signatures
    held: Mapping[str, str]
    trace_s: float
    build_s: float
    processor_s: float

    def save(self, file: Path) -> None:
        """Write it as JSON."""
        data = {**vars(self), "program": self.program.to_json()}
        file.write_text(json.dumps(data))

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> PeerPlan:
        """Build it from what `save` wrote."""
        return cls(**{**data, "program": Program.from_json(data["program"])})


def beside(result: Path, what: str) -> Path:
    """Return the file that belongs to a result: "a.json" and "plan" make "a.plan.json"."""
    return result.with_suffix(f".{what}.json")


def layout(plan: PeerPlan, mesh: Mesh, profile: Profile) -> Layout:
    """Return the plan as a layout, each redistribution on its cheapest path; outputs become whole.

    A tensor is redistributed once for every state that its readers want.
    """
    program = plan.program
    signatures = {
        op.name: {o: NdSbp.parse(plan.signatures[op.name][o], mesh) for o, _ in op.operands}
        for op in program.ops
    }
    held = {name: NdSbp.parse(text, mesh) for name, text in plan.held.items()}
    inputs = {name: held[name] for name in program.inputs}
    variables = {name: state for name, state in held.items() if name not in inputs}
    plain = Layout.of(program, signatures, variables, inputs)
    made = plain.made
    readers: dict[tuple[str, NdSbp], list[tuple[str, str]]] = {}
    for op in program.ops:
        for operand, tensor in op.inputs:
            wanted = signatures[op.name][operand]
            if tensor in made and made[tensor] != wanted:
                readers.setdefault((tensor, wanted), []).append((op.name, operand))
    for tensor in program.outputs:
        if made[tensor] != broadcast(mesh.ndim):
            readers.setdefault((tensor, broadcast(mesh.ndim)), []).append((OUTPUT, ""))
    prices = redistributor(mesh, profile)
    found = []
    for (name, wanted), who in readers.items():
        tensor_ = program.tensor[name]
        path = prices.path(tensor_.shape, tensor_.item_bytes, made[name], wanted)
        found.append(Redistribution(name, path, tuple(who)))
    return plain.with_redistributions(found)
