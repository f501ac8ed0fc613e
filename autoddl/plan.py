"""A plan: which state every tensor has on the mesh, what it costs, and how to run it.

Plans are frozen values, saved as versioned JSON and tied to the fingerprint of their graph.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.pipeline import Timeline, simulate
from autoddl.perfmodel.pipeline_step import PipelineStep
from autoddl.perfmodel.profile import Profile
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.rules.engines import ONEFLOW
from autoddl.sbp.shards import shard_slices
from autoddl.sbp.state import NdSbp

if TYPE_CHECKING:
    from autoddl.engine.step import Step

FORMAT = "autoddl.plan"
FORMAT_VERSION = 1
OUTPUT = "output"  # stands for the graph's outputs among the readers of a redistribution

Row = TypeVar("Row")


@dataclass(frozen=True)
class Transfer:
    """A tensor that goes from the devices of the stage that makes it to those of another stage.

    Every device sends its part to the device at the same place of the other stage's mesh. `path` are
    the states after boxings that come before, in the stage that makes it; the last one is the state in
    which it arrives, without any the one in which it is made.
    """

    tensor: str
    target: int
    path: tuple[NdSbp, ...] = ()


@dataclass(frozen=True)
class Pipeline:
    """Stages of a plan, each on devices of its own, and micro-batches that go through them.

    Stage i is on the ranks from i · mesh.size on, in a mesh of the plan's shape. `stage_of` maps ops,
    variables and inputs to their stages. `program` and plan describe one micro-batch; gradients are
    summed up over all, and updates come once. Redistributions have readers in one stage each; where
    their tensor comes from another stage they begin in the state in which it arrives. In the stages
    `recomputed` the backward pass makes activations again (activation checkpointing). Predicted
    are `memory_bytes` of each stage's device that needs most, and in `step` the seconds of all that a
    step consists of.
    """

    stages: int
    micro_batches: int
    stage_of: Mapping[str, int]
    transfers: tuple[Transfer, ...] = ()
    recomputed: tuple[int, ...] = ()
    memory_bytes: tuple[int, ...] = ()
    step: PipelineStep | None = None

    @property
    def timeline(self) -> Timeline:
        """Return the predicted course of a step, as `perfmodel.chrome_trace` draws it.

        Raises:
            AutoDDLError: the plan was made by hand, without seconds.
        """
        if self.step is None:
            raise AutoDDLError("pipeline: no seconds to simulate; plan with autoddl.optimize")
        return simulate(self.step)


@dataclass(frozen=True)
class InputPlan:
    """One input of the graph: its logical shape and its state on the mesh."""

    name: str
    shape: tuple[int, ...]
    state: NdSbp
    mesh: Mesh

    def local_slice(self, rank: int) -> tuple[slice, ...]:
        """Return which part of the logical batch a rank needs, one slice per dim."""
        return shard_slices(self.shape, self.state, self.mesh.shape, self.mesh.coords(rank))


@dataclass(frozen=True)
class Redistribution:
    """A tensor that some readers want in another state: the states after each boxing.

    `readers` are (op, operand) pairs, or (OUTPUT, "") for what the graph returns. The boxing behind the
    first `early` ones waits for the op `after`, so that its result is not there long before it is read.
    """

    tensor: str
    path: tuple[NdSbp, ...]
    readers: tuple[tuple[str, str], ...]
    after: str = ""
    early: int = 0


@dataclass(frozen=True)
class Layer:
    """One row of the table: a module, the signature of its main op, seconds and bytes per device.

    `memory_bytes` are those of parameters, their states and gradients, and of what the backward pass
    reads: the part of the memory that belongs to one module.
    """

    module: str
    signature: str
    compute_s: float
    communication_s: float
    memory_bytes: int


@dataclass(frozen=True)
class Estimate:
    """What one assignment costs per step and device, under the plan's profile.

    `overlap_s` are the seconds in which ops and boxings go on at once (perfmodel.timeline).
    `memory_bytes` is all that OneFlow allocates on the device that needs most; `uncertainty_s` is how
    far the step time may be off by what the profile's own fits and the model miss. With stages compute
    and communication are those of the busiest stage, which waits `idle_s` for others.
    """

    name: str
    compute_s: float
    communication_s: float
    memory_bytes: int
    uncertainty_s: float = 0.0
    overlap_s: float = 0.0
    idle_s: float = 0.0

    @property
    def step_s(self) -> float:
        """Return the seconds of a step: compute plus communication, less what overlaps, and waiting."""
        return self.compute_s + self.communication_s - self.overlap_s + self.idle_s


class Rows(Sequence[Row]):
    """A tuple that is made when one of its items is first read."""

    def __init__(self, make: Callable[[], tuple[Row, ...]]) -> None:
        self._make: Callable[[], tuple[Row, ...]] | None = make
        self._rows: tuple[Row, ...] = ()

    @property
    def rows(self) -> tuple[Row, ...]:
        """Return the tuple."""
        if self._make is not None:
            self._rows, self._make = self._make(), None
        return self._rows

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __eq__(self, other: object) -> bool:
        return self.rows == (other.rows if isinstance(other, Rows) else other)

    def __hash__(self) -> int:
        return hash(self.rows)

    def __repr__(self) -> str:
        return repr(self.rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self.rows,)


@dataclass(frozen=True)
class Plan:
    """States for all tensors of one program on one mesh, with their predicted costs.

    `signatures` maps ops to operand states, `variables` parameters and optimizer states to theirs.
    `search` tells how the plan was found (solver, seed, seconds, lower bound). `baselines` that did not
    decide on the plan are estimated when they are first read. A plan for no `engine` may have states
    that none executes. With `compute_stream` OneFlow runs boxings as ops of its compute stream, on CUDA
    devices. With a `pipeline` the mesh is that of each stage, and signatures,
    redistributions and inputs' shapes are those of one micro-batch. `program` is what was planned;
    code is generated from it.
    """

    fingerprint: str
    device: str
    mesh: Mesh
    profile: str
    memory_limit_bytes: int | None
    signatures: Mapping[str, NdSignature]
    variables: Mapping[str, NdSbp]
    inputs: tuple[InputPlan, ...]
    redistributions: Sequence[Redistribution]
    layers: tuple[Layer, ...]
    estimate: Estimate
    baselines: Sequence[Estimate] = ()
    search: Mapping[str, Any] = field(default_factory=dict)
    engine: str | None = ONEFLOW
    pipeline: Pipeline | None = None
    compute_stream: bool = False
    program: Program | None = field(default=None, repr=False, compare=False)

    @property
    def devices(self) -> int:
        """Return the number of devices, those of all stages."""
        return self.mesh.size * (1 if self.pipeline is None else self.pipeline.stages)

    def apply(self, graph: Any) -> Step:
        """Return a callable with the graph's signature that runs this plan on all ranks.

        Call it on every rank, before the first step. The model's parameters become global tensors.

        Raises:
            AutoDDLError: the plan is for another graph, device type or number of ranks, or no engine.
        """
        if self.engine != ONEFLOW:
            raise AutoDDLError(
                f"plan: made for engine {self.engine}, where axes cut in any order and no signature "
                "is refused; plan with engine='oneflow' to run it"
            )
        if self.compute_stream and self.device != "cuda":
            raise AutoDDLError(
                f"plan: made for the compute stream of CUDA devices, on {self.device!r} there is none; "
                "plan with compute_stream=False"
            )
        from autoddl.engine.step import Step

        return Step(self, graph)

    def codegen(self, path: str | Path, *, learning_rate: float | None = None) -> None:
        """Write this plan as a standalone Python script that needs only OneFlow and NumPy.

        It runs eagerly with global tensors, on meshes of any number of axes, and loads the state dict
        of the single-device model. `learning_rate` is the default of its option.

        Raises:
            AutoDDLError: the plan has no program, states that OneFlow has not, or ops without a
                template; the file can't be written.
        """
        from autoddl.codegen import command, generate

        command.write(path, generate(self, learning_rate=learning_rate))

    def check_graph(self, program: Program) -> None:
        """Raise AutoDDLError where `program` is not the one that was planned."""
        if program.device != self.device:
            raise AutoDDLError(
                f"plan: made for device type {self.device!r}, the graph is on {program.device!r}, "
                "whose ops differ; plan again on the cluster, it takes seconds"
            )
        found = program.fingerprint if self.pipeline is None else program.structure
        if found != self.fingerprint:
            raise AutoDDLError(
                f"plan: made for graph {self.fingerprint}, this graph is {found} "
                f"({_difference(self, program)}); plan again with autoddl.optimize"
            )

    def save(self, path: str | Path) -> None:
        """Write the plan as versioned JSON."""
        Path(path).write_text(json.dumps(self.to_json(), indent=1) + "\n")

    def trace(self, path: str | Path, *, profile: str | Path | Profile | None = None) -> None:
        """Write the predicted course of a step in the format of chrome://tracing and Perfetto.

        `profile` prices a plan without stages, by default the bundled one that the plan names.

        Raises:
            AutoDDLError: no seconds, program or profile to predict from, or the file can't be written.
        """
        from autoddl import trace

        trace.write(self, path, profile=profile)

    def to_json(self) -> dict[str, Any]:
        """Return the versioned JSON form."""
        from autoddl import plan_json

        return plan_json.encode(self)

    def __str__(self) -> str:
        from autoddl.table import plan_table

        return plan_table(self)


def load(path: str | Path) -> Plan:
    """Read a plan that `Plan.save` wrote.

    Raises:
        AutoDDLError: the file is missing, truncated, no plan, or of another version.
    """
    from autoddl import plan_json

    try:
        data = json.loads(Path(path).read_text())
    except (OSError, TypeError, ValueError) as error:
        raise AutoDDLError(f"plan file {path}: {error}; plan again with autoddl.optimize") from None
    return plan_json.decode(data, f"plan file {path}")


def _difference(plan: Plan, program: Program) -> str:
    """Say in a few words how a program differs from the planned one."""
    for item in plan.inputs:
        tensor = program.tensor.get(item.name)
        if tensor is None:
            return f"it has no input {item.name}"
        if tensor.shape != item.shape:
            return f"input {item.name} has shape {tensor.shape}, planned was {item.shape}"
    ops, planned = set(program.op), set(plan.signatures)
    if ops != planned:
        extra, missing = sorted(ops - planned), sorted(planned - ops)
        return f"op {extra[0]} is new" if extra else f"op {missing[0]} is gone"
    return "shapes or attributes differ"
