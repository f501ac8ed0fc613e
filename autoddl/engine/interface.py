"""What the planner and the tools need of an engine; each engine lies in `autoddl.engine.<name>`.

`engines.load("oneflow")` gives one. What planning has to know of it is its EngineModel (model.py), so
that plans can be made where no engine is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Protocol

from autoddl.codegen.dialect import Dialect
from autoddl.engine.model import EngineModel
from autoddl.plan.value import PlanValue
from autoddl.sbp.program import Op, Program
from autoddl.sbp.rules.registry import Signature
from autoddl.sbp.state import NdSbp


class OwnSignatures(Protocol):
    """An engine's own lists of how ops can be split whose rules did not come with autoddl."""

    @property
    def whole(self) -> Mapping[str, str]:
        """Return the op types that stay all-broadcast, with the reason."""

    def signatures(self, op: Op, devices: int) -> tuple[Signature, ...]:
        """Return the one-axis signatures of an op; () where there are none."""


Replan = Callable[[Any, tuple[Any, ...], Mapping[str, Any], Mapping[str, NdSbp] | None], PlanValue]
"""Plans a graph that is called with these arguments, with its parameters as they are."""


class TrainingStep(Protocol):
    """A step of training under a plan, called as the user's graph is."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step on whole batches, the same on every rank."""

    def from_local(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step on this rank's parts of the batches."""

    def evaluate(self, what: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a graph, or a module, over the parameters that are trained."""

    def close(self) -> None:
        """Give the memory of what was compiled back, on all ranks at the same place."""

    def state_dict(self) -> dict[str, Any]:
        """Return all values as the graph of one device has them, on every rank."""

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from such values."""

    def save(self, folder: str | Path) -> None:
        """Write a checkpoint, each rank its shards."""

    def load(self, folder: str | Path) -> None:
        """Go on from a checkpoint."""

    @property
    def changed_signatures(self) -> list[tuple[str, str]]:
        """Return the (op, operand) pairs that the engine did not execute as planned."""


class Probes(NamedTuple):
    """Modules that `python -m` runs on every rank to measure; `calibrate` says what they read, write."""

    links: str
    """Times collectives over groups of ranks (calibrate.network)."""
    ops: str
    """Times the ops of small training steps (calibrate.device)."""


class Engine(Protocol):
    """An engine that runs plans. Making one imports nothing of it."""

    model: EngineModel
    probes: Probes

    def dialect_of(self, plan: PlanValue) -> Dialect:
        """Return how scripts of a plan are written."""

    def installed(self) -> bool:
        """Tell whether the engine can be imported."""

    def capture(self, graph: Any, *inputs: Any, **kwargs: Any) -> Program:
        """Return the program of a user's graph on one device."""

    def abstract_parameters(self, seed: int = 0) -> AbstractContextManager[None]:
        """Build modules inside that take no memory until a plan is applied."""

    def cluster(self) -> tuple[int, int]:
        """Count the nodes of the running ranks, and the ranks of each."""

    def agree(self, make: Callable[[], PlanValue]) -> PlanValue:
        """Make a plan on rank 0 and return it on every rank."""

    def seconds_of(
        self, step: TrainingStep, call: tuple[Sequence[Any], Mapping[str, Any]], warm_up: int,
        steps: int,
    ) -> Sequence[float]:  # fmt: skip
        """Time so many steps, called with these arguments, on all ranks at once, after a few others."""

    def leave(self) -> NoReturn:
        """End this rank's process together with all others."""

    def signatures(self, program: Program, sizes: Collection[int]) -> OwnSignatures:
        """Ask about ops without a rule of autoddl's, on mesh axes of these sizes."""

    def write_state(
        self, arrays: Mapping[str, Any], blocks: Sequence[str], graph: str, path: str
    ) -> None:
        """Write whole arrays as the engine's own state dict of a graph with these modules and name."""

    def cuda_environment(self, folder: Path) -> dict[str, str]:
        """Return what a process needs that traces as on CUDA devices; it puts a library into `folder`."""

    def made_on_cpu(self) -> AbstractContextManager[None]:
        """Leave on the CPU what is put on CUDA devices inside, in such a process."""

    def traced_as_cuda(self) -> AbstractContextManager[None]:
        """Trace inside as on CUDA devices, in such a process, without any."""

    def accumulation_steps(self, graph: Any) -> int:
        """Return in how many micro-batches the user's graph cuts the batch."""

    def held(self, graph: Any) -> tuple[tuple[int, ...], Mapping[str, NdSbp]] | None:
        """Return the mesh and the states that a graph's variables have in the step of another graph."""

    def apply(
        self, plan: PlanValue, graph: Any, replan: Replan, *, other_shapes: bool
    ) -> TrainingStep:
        """Return a callable with the graph's signature that runs a plan on all ranks.

        `replan` plans graphs over the same parameters that are run beside it.
        """
