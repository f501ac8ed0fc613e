"""The cost function network of a planning problem: variables with domains, and factors over tensors.

A variable is an op, a graph input, a graph output, a parameter together with its optimizer states and
its update (they share one state), or a tensor that is saved for the backward pass. Its domain are
signatures, each with seconds and bytes. A factor is a tensor: its scope are the variable that makes it
and those that read it, and it costs its redistributions, once for every state that some reader wants.

    x made as S0, read by two ops as B and one as S1, S0→B 3 ms, S0→S1 1 ms: the factor costs 3 + 1 ms.

Source: Cooper, de Givry and Schiex 2020 (cost function networks).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import numpy as np

from autoddl.engine.model import CollectiveQueue, EngineModel, StepMemory, StreamUse
from autoddl.errors import InfeasibleError
from autoddl.perfmodel.places import MeshPlace, places_of
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.redistribution import Redistributor
from autoddl.perfmodel.step_cost import StepPrices
from autoddl.ragged import Ragged
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Parameter, Program
from autoddl.sbp.rewrites.recomputed_layers import recomputes
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.state import NdSbp, broadcast
from autoddl.search.network.evaluator import Arrays, Floats, Incidence, Ints, costs_of, states_of
from autoddl.search.network.placed_memory import PlacedMemory
from autoddl.search.network.variables import (
    GRADIENT,
    SAVED,
    TENSOR,
    Domain,
    Factors,
    Variables,
    ints,
    shared,
)
from autoddl.search.result import Assignment, Point, SearchResult

__all__ = [
    "GRADIENT", "SAVED", "TENSOR", "CostNetwork", "Domain", "Factors", "Floats", "Ints", "Setting",
    "Variables", "as_ints", "ints", "shared",
]  # fmt: skip

_T = TypeVar("_T")


@dataclass(frozen=True, eq=False)
class Setting:
    """What is planned, on which devices, at which prices, for which engine and use of its streams.

    Networks that are made of each other share it, and with it the only `redistributor` that finds paths.
    """

    program: Program
    mesh: Mesh
    profile: Profile
    engine: EngineModel
    streams: StreamUse
    launch: tuple[int, int] | None = None
    """The most MiB and collectives in one launch; None: the engine's."""
    kinds: tuple[str, ...] = ()
    """Of the devices by rank, where the mesh has shares."""

    @cached_property
    def places(self) -> tuple[MeshPlace, ...]:
        """Return where devices or what they have of cuts are unlike."""
        return places_of(self.mesh, self.profile, self.kinds)

    @property
    def queue(self) -> CollectiveQueue | None:
        """Return the queue of collectives beside the computation, if there is one on such devices."""
        queue = self.engine.collectives.get(self.program.device)
        if queue is None or self.streams.compute_stream:
            return None
        size, number = self.launch or (queue.threshold_mb, queue.max_ops)
        return replace(queue, threshold_mb=size, max_ops=number)

    @cached_property
    def redistributor(self) -> Redistributor:
        """Return the paths between states, as the engine runs them on these streams."""
        return Redistributor(self.mesh, self.profile, self.engine, self.streams, queue=self.queue)

    @cached_property
    def prices(self) -> StepPrices:
        """Return the prices of single ops and boxings, for all assignments that are estimated."""
        return StepPrices(self.program, self.mesh, self.profile, self.queue, self.kinds)

    @cached_property
    def memory(self) -> StepMemory:
        """Return what layouts take on one device, for all assignments that are estimated."""
        if len(self.places) > 1:
            return PlacedMemory(self.engine, self.program, self.places)
        return self.engine.memory(self.program, self.mesh.cuts)


@dataclass(frozen=True, eq=False)
class CostNetwork:
    """Minimise Σ compute + Σ redistributions over one choice per variable.

    `written` maps parameters that an op updates in place to that op and its operand: they have the
    state that the op chooses for them, and no variable of their own.
    """

    setting: Setting
    variables: Variables
    factors: Factors
    written: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    _derived: dict[Callable[[CostNetwork], Any], Any] = field(
        default_factory=dict, init=False, repr=False
    )

    def derived(self, make: Callable[[CostNetwork], _T]) -> _T:
        """Return what a pure function makes of this network; it is called once."""
        if make not in self._derived:
            self._derived[make] = make(self)
        found: _T = self._derived[make]
        return found

    @property
    def program(self) -> Program:
        """Return what is planned."""
        return self.setting.program

    @property
    def mesh(self) -> Mesh:
        """Return the devices."""
        return self.setting.mesh

    @property
    def profile(self) -> Profile:
        """Return the prices of links and kernels."""
        return self.setting.profile

    @property
    def compute_stream(self) -> bool:
        """Tell whether boxings are ops of the compute stream: less memory, and nothing overlaps."""
        return self.setting.streams.compute_stream

    @property
    def timed_ops(self) -> Ints:
        """Return the op whose seconds each variable has: itself, a parameter's update, or -1."""
        return self.derived(_timed_ops)

    def __len__(self) -> int:
        """Return the number of variables."""
        return len(self.variables.kind)

    @cached_property
    def arrays(self) -> Arrays:
        """Return the network as arrays alone, for compiled loops."""
        variables, factors = self.variables, self.factors
        compute, compute_at = _joined([d.compute_s for d in variables.domains], variables.domain)
        memory, memory_at = _joined([d.memory_bytes for d in variables.domains], variables.domain)
        states, states_at = _joined(factors.arrays, factors.states)
        cost, table_at = _joined([table.cost for table in factors.tables], factors.table)
        sizes = ints([len(table.cost) for table in factors.tables])
        return Arrays(
            variables.sizes,
            np.asarray(compute, dtype=np.float64), compute_at,
            np.asarray(memory, dtype=np.int64), memory_at,
            factors.begin, factors.variable,
            np.asarray(states, dtype=np.int64), states_at,
            np.asarray(cost, dtype=np.float64), table_at, sizes[factors.table],
        )  # fmt: skip

    @cached_property
    def incidence(self) -> Incidence:
        """Return the factors of every variable, in ascending order."""
        factors, count = self.factors, len(self.factors.table) + 1
        pairs = np.unique(factors.variable * count + factors.factor)
        variable, factor = np.divmod(pairs, count)
        return Incidence(np.searchsorted(variable, np.arange(len(self) + 1)), factor)

    def touched(self, variables: Ints) -> Ints:
        """Return the factors of any of some variables, in ascending order."""
        return np.unique(Ragged(*self.incidence).take(variables).items)

    def neighbours(self, variable: int) -> list[int]:
        """Return the variables that share a factor with one, in the order of these."""
        first, factor = self.incidence
        found: dict[int, None] = {}
        for which in factor[first[variable] : first[variable + 1]].tolist():
            begin, end = self.factors.begin[which : which + 2]
            found.update(dict.fromkeys(self.factors.variable[begin:end].tolist()))
        found.pop(variable, None)
        return list(found)

    @cached_property
    def modules(self) -> tuple[Ints, Sequence[str]]:
        """Return for every variable the number of its module, and the names of the modules.

        It is that of an op or a parameter, or of what makes a saved tensor; others have "".
        """
        columns, program = self.variables, self.program.columns
        names = {name: number for number, name in enumerate(program.modules)}
        maker, saved = columns.op.copy(), np.flatnonzero(columns.of_kind(SAVED))
        maker[saved] = program.maker[[program.number[columns.name[n]] for n in saved.tolist()]]
        found = np.append(program.module, -1)[maker]
        held = columns.of_kind("parameter", SAVED)
        for variable in np.flatnonzero(maker < 0).tolist():
            module = columns.name[variable].rpartition(".")[0] if held[variable] else ""
            found[variable] = names.setdefault(module, len(names))
        return found, tuple(names)

    def update_signature(self, parameter: Parameter, state: NdSbp) -> NdSignature:
        """Return the signature of a parameter's update, one object for equal ones."""
        follows = {parameter.tensor, parameter.gradient, *parameter.states}
        inputs = self.program.op[parameter.update or ""].inputs
        return _signature(tuple([(o, t in follows) for o, t in inputs]), state, self.mesh.ndim)

    def states(self, assignment: Point) -> tuple[Ints, Ints]:
        """Return the state of each factor's tensor, and those that its readers want, factor by factor.

        States are indices into the factors' tables.
        """
        found, reads = states_of(self.arrays, as_ints(assignment)), self.factors.reads
        return found[~reads], found[reads]

    def costs(self, assignment: Point) -> tuple[float, int]:
        """Return the seconds of a step under an assignment, and its bytes (see `memory_bytes`)."""
        compute_s, communication_s, held = costs_of(self.arrays, as_ints(assignment))
        return compute_s + communication_s, held

    def cost_s(self, assignment: Point) -> float:
        """Return the seconds of a step under an assignment."""
        return self.costs(assignment)[0]

    def compute_s(self, assignment: Point) -> float:
        """Return the compute part of the cost."""
        return costs_of(self.arrays, as_ints(assignment))[0]

    def communication_s(self, assignment: Point) -> float:
        """Return the redistribution part of the cost."""
        return costs_of(self.arrays, as_ints(assignment))[1]

    def memory_bytes(self, assignment: Point) -> int:
        """Return the bytes per device that can be summed up variable by variable.

        That is less than a plan takes (Setting.memory): boxings and what lives for a
        short time are not in it.
        """
        return self.costs(assignment)[1]

    @property
    def least_memory_bytes(self) -> int:
        """Return the bytes below which no assignment's `memory_bytes` is."""
        return int(self._least_bytes.sum())

    @cached_property
    def _least_bytes(self) -> Ints:
        least = [domain.memory_bytes.min() for domain in self.variables.domains]
        return ints(least)[self.variables.domain]

    def lower_bound_s(self) -> float:
        """Return a cost that no assignment can beat: every variable's cheapest compute, no traffic."""
        least = np.array([domain.compute_s.min() for domain in self.variables.domains])
        return float(sum(least[self.variables.domain].tolist()))

    def result(self, solver: str, assignment: Point) -> SearchResult:
        """Return an assignment in the form that solvers return, without a search behind it."""
        cost_s, held = self.costs(assignment)
        return SearchResult(
            solver, Assignment.of(assignment), cost_s, self.lower_bound_s(), held, ()
        )

    def check_memory(self, limit_bytes: int | None) -> None:
        """Raise InfeasibleError where no assignment fits; it names by how much and what is large."""
        least = self.least_memory_bytes
        if limit_bytes is None or least <= limit_bytes:
            return
        largest = np.argsort(-self._least_bytes, kind="stable")[:3].tolist()
        names = ", ".join(f"{self._held_by(v)} ({self._least_bytes[v]:,} B)" for v in largest)
        again = ", with all layers computed again," if recomputes(self.program) else ""
        error = InfeasibleError(
            f"memory {limit_bytes:,} B per device on mesh {self.mesh}: every assignment{again} needs at "
            f"least {least:,} B, {least - limit_bytes:,} B more; largest per device: {names}; "
            "give more memory or devices, or a smaller batch"
        )
        error.least_bytes = least
        raise error

    def _held_by(self, variable: int) -> str:
        """Name the tensors that a variable's memory is for."""
        name = self.variables.name[variable]
        if self.variables.op[variable] >= 0:
            return ", ".join(output for _, output in self.program.op[name].outputs)
        states = next((p.states for p in self.program.parameters if p.tensor == name), ())
        return f"{name} with its optimizer states" if states else name


@lru_cache(maxsize=1 << 12)
def _signature(pattern: tuple[tuple[str, bool], ...], state: NdSbp, axes: int) -> NdSignature:
    """Return the signature in which some operands have a state, and all others are broadcast."""
    one = broadcast(axes)
    return {operand: state if follows else one for operand, follows in pattern}


def _joined(arrays: Sequence[Any], numbers: Ints) -> tuple[Any, Ints]:
    """Return all arrays one behind the other, equal objects once, and where each of some begins."""
    number, once = shared(arrays)
    begin = np.cumsum([0, *[array.size for array in once]])
    joined = np.concatenate([a.reshape(-1) for a in once]) if once else np.zeros(0, dtype=np.int64)
    return joined, begin[number[numbers]]


def as_ints(assignment: Point) -> Ints:
    """Return the choices of an assignment as an array."""
    return np.asarray(assignment, dtype=np.int64)


def _timed_ops(network: CostNetwork) -> Ints:
    variables, program = network.variables, network.program
    place, found = program.columns.place, variables.op.copy()
    updates = {p.tensor: place[p.update] for p in program.parameters if p.update is not None}
    for variable in variables.where("parameter").tolist():
        found[variable] = updates.get(variables.name[variable], -1)
    return found
