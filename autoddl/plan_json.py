"""The JSON form of a plan."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.pipeline_step import PipelineStep, StageWork, TransferWork
from autoddl.plan import (
    FORMAT,
    FORMAT_VERSION,
    Estimate,
    InputPlan,
    Layer,
    Pipeline,
    Plan,
    Redistribution,
    Transfer,
)
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.rules.engines import ONEFLOW
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
        "engine": plan.engine,
        "compute_stream": plan.compute_stream,
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
                **({"after": r.after, "early": r.early} if r.after else {}),
            }
            for r in plan.redistributions
        ],
        "pipeline": None if plan.pipeline is None else _encoded(plan.pipeline),
        "program": None if plan.program is None else plan.program.to_json(),
    }


def _encoded(pipeline: Pipeline) -> dict[str, Any]:
    transfers = [
        {"tensor": t.tensor, "target": t.target, "path": [str(state) for state in t.path]}
        for t in pipeline.transfers
    ]
    return {
        "stages": pipeline.stages,
        "micro_batches": pipeline.micro_batches,
        "recomputed": list(pipeline.recomputed),
        "memory_bytes": list(pipeline.memory_bytes),
        "stage_of": dict(pipeline.stage_of),
        "transfers": transfers,
        "step": None if pipeline.step is None else asdict(pipeline.step),
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
        plan = _plan(data)
        _check(plan)
    except AutoDDLError as error:
        raise AutoDDLError(
            f"{where}: damaged ({error}); plan again with autoddl.optimize"
        ) from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise AutoDDLError(
            f"{where}: damaged ({error!r}); plan again with autoddl.optimize"
        ) from None
    return plan


def _plan(data: dict[str, Any]) -> Plan:
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
                r.get("after", ""),
                r.get("early", 0),
            )
            for r in data["redistributions"]
        ),
        layers=tuple(Layer(**layer) for layer in data["layers"]),
        estimate=Estimate(**data["estimate"]),
        baselines=tuple(Estimate(**b) for b in data["baselines"]),
        search=data["search"],
        engine=data.get("engine", ONEFLOW),
        pipeline=_pipeline(data.get("pipeline")),
        compute_stream=data.get("compute_stream", False),
        program=None if data.get("program") is None else Program.from_json(data["program"]),
    )


def _pipeline(data: Any) -> Pipeline | None:
    if data is None:
        return None
    pipeline = Pipeline(
        stages=data["stages"],
        micro_batches=data["micro_batches"],
        stage_of=data["stage_of"],
        transfers=tuple(
            Transfer(t["tensor"], t["target"], tuple(NdSbp.parse(text) for text in t["path"]))
            for t in data["transfers"]
        ),
        recomputed=tuple(data["recomputed"]),
        memory_bytes=tuple(data["memory_bytes"]),
        step=None if data["step"] is None else _step(data["step"]),
    )
    stages = (*pipeline.stage_of.values(), *(t.target for t in pipeline.transfers))
    for stage in (*stages, *pipeline.recomputed):
        if stage not in range(pipeline.stages):
            raise ValueError(f"stage {stage} of {pipeline.stages}")
    if pipeline.micro_batches < 1:
        raise ValueError(f"{pipeline.micro_batches} micro-batches")
    return pipeline


def _step(data: Any) -> PipelineStep:
    works = (
        StageWork(*(tuple((s, t) for s, t in w[p]) for p in ("forward", "backward", "once")))
        for w in data["stages"]
    )
    lists = {
        name: None if data[name] is None else tuple(data[name]) for name in ("credits", "device_of")
    }
    transfers = tuple(TransferWork(**t) for t in data["transfers"])
    return PipelineStep(**{**data, **lists, "stages": tuple(works), "transfers": transfers})


def _check(plan: Plan) -> None:
    """Raise where values have the wrong type, or states don't fit the mesh or the shapes."""
    rows = (plan.estimate, *plan.baselines)
    texts = [plan.fingerprint, plan.device, plan.profile, *(row.name for row in rows)]
    texts += [r.after for r in plan.redistributions]
    texts += [text for layer in plan.layers for text in (layer.module, layer.signature)]
    priced: tuple[Estimate | Layer, ...] = (*rows, *plan.layers)
    numbers = [n for x in priced for n in (x.compute_s, x.communication_s, x.memory_bytes)]
    numbers += [n for row in rows for n in (row.uncertainty_s, row.overlap_s)]
    if plan.engine is not None:
        texts.append(plan.engine)
    if plan.memory_limit_bytes is not None:
        numbers.append(plan.memory_limit_bytes)
    if plan.search:
        texts.append(plan.search["solver"])
        numbers += [plan.search[key] for key in ("seed", "seconds", "lower_bound_s")]
    for values, types in ((texts, str), (numbers, int | float)):
        for value in values:
            if not isinstance(value, types):
                raise TypeError(value)
    if not isinstance(plan.compute_stream, bool):
        raise TypeError(plan.compute_stream)
    states = [*plan.variables.values(), *(i.state for i in plan.inputs)]
    states += [state for signature in plan.signatures.values() for state in signature.values()]
    states += [state for r in plan.redistributions for state in r.path]
    if plan.pipeline is not None:
        states += [state for t in plan.pipeline.transfers for state in t.path]
    for state in states:
        if len(state) != plan.mesh.ndim:
            raise AutoDDLError(f"state {state} on mesh {plan.mesh}")
    for item in plan.inputs:
        item.local_slice(0)
