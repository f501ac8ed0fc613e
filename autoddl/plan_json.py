"""The JSON form of a plan."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from autoddl.errors import AutoDDLError
from autoddl.plan import FORMAT, FORMAT_VERSION, Estimate, InputPlan, Layer, Plan, Redistribution
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.state import NdSbp


def encode(plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON values; states are written as "(S0, B)"."""
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "fingerprint": plan.fingerprint,
        "device": plan.device,
        "mesh": plan.mesh.describe(),
        "profile": plan.profile,
        "memory_limit_bytes": plan.memory_limit_bytes,
        "estimate": asdict(plan.estimate),
        "baselines": [asdict(b) for b in plan.baselines],
        "search": dict(plan.search),
        "inputs": [
            {"name": i.name, "shape": list(i.shape), "state": str(i.state)} for i in plan.inputs
        ],
        "layers": [asdict(layer) for layer in plan.layers],
        "variables": {name: str(state) for name, state in plan.variables.items()},
        "signatures": {
            op: {operand: str(state) for operand, state in states.items()}
            for op, states in plan.signatures.items()
        },
        "redistributions": [
            {
                "tensor": r.tensor,
                "path": [str(state) for state in r.path],
                "readers": [list(reader) for reader in r.readers],
            }
            for r in plan.redistributions
        ],
    }


def decode(data: Any, where: str) -> Plan:
    """Return the plan of its JSON form; `where` names the source in errors.

    Raises:
        AutoDDLError: not a plan, another version, or damaged.
    """
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise AutoDDLError(f"{where}: not a saved plan; write one with Plan.save")
    if data.get("version") != FORMAT_VERSION:
        raise AutoDDLError(
            f"{where}: version {data.get('version')}, this autoddl reads {FORMAT_VERSION}; "
            "plan again with autoddl.optimize"
        )
    try:
        mesh = Mesh.parse(data["mesh"])
        return Plan(
            fingerprint=data["fingerprint"],
            device=data["device"],
            mesh=mesh,
            profile=data["profile"],
            memory_limit_bytes=data["memory_limit_bytes"],
            signatures={
                op: {operand: NdSbp.parse(text) for operand, text in states.items()}
                for op, states in data["signatures"].items()
            },
            variables={name: NdSbp.parse(text) for name, text in data["variables"].items()},
            inputs=tuple(
                InputPlan(i["name"], tuple(i["shape"]), NdSbp.parse(i["state"]), mesh)
                for i in data["inputs"]
            ),
            redistributions=tuple(
                Redistribution(
                    r["tensor"],
                    tuple(NdSbp.parse(text) for text in r["path"]),
                    tuple((op, operand) for op, operand in r["readers"]),
                )
                for r in data["redistributions"]
            ),
            layers=tuple(Layer(**layer) for layer in data["layers"]),
            estimate=Estimate(**data["estimate"]),
            baselines=tuple(Estimate(**b) for b in data["baselines"]),
            search=data["search"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise AutoDDLError(
            f"{where}: damaged ({error!r}); plan again with autoddl.optimize"
        ) from None
