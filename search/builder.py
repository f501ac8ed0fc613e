"""Program + mesh + profile → Problem: what every node may choose from, and what that costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.compute import signature_s
from autoddl.perfmodel.memory import kept_tensors, local_bytes
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.redistribute import RedistributionTable, Redistributor
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Op, Parameter, Program, Tensor
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.rules.engines import ONEFLOW
from autoddl.sbp.rules.registry import find
from autoddl.sbp.shards import all_states, local_shape
from autoddl.sbp.state import OWN, B, NdSbp, S, broadcast
from autoddl.search.choices import SignatureLists, choices, whole_where_single
from autoddl.search.problem import GRADIENT, TENSOR, Edge, Node, Problem

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_T = TypeVar("_T")


def build(
    program: Program,
    mesh: Mesh,
    profile: Profile,
    *,
    pin: Mapping[str, str] | None = None,
    lists: SignatureLists | None = None,
    allow: frozenset[str] = frozenset(),
    engine: str | None = ONEFLOW,
    any_batch: bool = False,
    compute_stream: bool = False,
) -> Problem:
    """Return the problem of planning `program` on `mesh` under `profile`.

    `pin` maps name patterns of parameters and inputs to states, e.g. {"*.fc1.weight": "B,S(0)"};
    `lists` gives the signatures of ops without a rule, which are all-broadcast otherwise; `allow`
    names the approximations that are permitted ("local_batchnorm"). Choices are those that `engine`
    can execute; None allows all that are right, with the axes of the mesh cutting in any order. With
    `compute_stream` boxings are ops of the compute stream.

    Raises:
        AutoDDLError: a pin matches nothing or can't be; no axis of the mesh divides the batch, and
            not `any_batch`.
    """
    builder = _Builder(program, mesh, profile, dict(pin or {}), lists, allow, engine)
    if compute_stream:
        builder.use_compute_stream()
    if not any_batch:
        builder.check_batch()
    return builder.problem()


class _Builder:
    """Collect nodes and edges; everything that depends on shapes only is computed once per shape."""

    def __init__(
        self, program: Program, mesh: Mesh, profile: Profile, pin: dict[str, str],
        lists: SignatureLists | None, allow: frozenset[str], engine: str | None,
    ) -> None:  # fmt: skip
        self.program, self.mesh, self.profile, self.lists = program, mesh, profile, lists
        self.allow, self.engine = allow, engine
        self.written, self.shared = _written(program)
        self.pins = {pattern: self._parsed(pattern, text) for pattern, text in pin.items()}
        self.redistributor = Redistributor(mesh, profile, any_order=engine is None)
        self.kept = kept_tensors(program)
        self.cache: dict[Any, Any] = {}
        self.priced: dict[Any, tuple[tuple[NdSignature, ...], Floats, Ints]] = {}
        self.tables: dict[tuple[tuple[int, ...], str, bool], RedistributionTable] = {}
        self.locals: dict[tuple[tuple[int, ...], NdSbp], tuple[int, ...] | None] = {}
        self.indices: dict[tuple[int, str, int], Ints] = {}
        self.kind = {op.name: n for op, n in zip(program.ops, program.kinds, strict=True)}

    def problem(self) -> Problem:
        self._check_pins()
        updates = {p.update for p in self.program.parameters}
        nodes = [self._held("input", name, ()) for name in self.program.inputs]
        nodes += [
            self._parameter(p) for p in self.program.parameters if p.tensor not in self.written
        ]
        nodes += [self._op(op) for op in self.program.ops if op.name not in updates]
        nodes += [self._output(name) for name in dict.fromkeys(self.program.outputs)]
        edges = self._edges(nodes)
        return Problem(
            self.program, self.mesh, self.profile, tuple(nodes), edges, self.written,
            self.redistributor.compute_stream,
        )  # fmt: skip

    def use_compute_stream(self) -> None:
        """Take only the boxings that OneFlow makes ops of the compute stream."""
        self.redistributor = Redistributor(
            self.mesh, self.profile, any_order=self.engine is None, compute_stream=True
        )

    def _parsed(self, pattern: str, text: str) -> NdSbp:
        """Return the state that a pin asks for; what it says of axes of one device is void."""
        try:
            state = NdSbp.parse(text, self.mesh)
        except AutoDDLError as error:
            raise AutoDDLError(f"pin {pattern!r}: {error}") from None
        for sbp in state:
            if sbp not in (B, OWN) and sbp is not S(sbp.dim if sbp.is_split else 0):
                raise AutoDDLError(
                    f"pin {pattern!r}: {sbp} in {state}; parameters and inputs are B or S<dim>, in the "
                    "order of the mesh and without strides"
                )
        return NdSbp(s if n > 1 else B for s, n in zip(state, self.mesh.shape, strict=True))

    def _check_pins(self) -> None:
        names = [*self.program.inputs, *(p.tensor for p in self.program.parameters)]
        for pattern in self.pins:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise AutoDDLError(
                    f"pin {pattern!r}: matches no parameter and no input; names are such as "
                    f"{', '.join(names[:4])}"
                )

    def check_batch(self) -> None:
        """Refuse inputs whose batch no axis of the mesh divides, unless they are pinned."""
        axes = [size for size in self.mesh.shape if size > 1]
        free = [
            self.program.tensor[name]
            for name in self.program.inputs
            if self._pin(name) is None and self.program.tensor[name].shape
        ]
        if not axes or not free or any(t.shape[0] % size == 0 for t in free for size in axes):
            return
        first, least = free[0], min(axes)
        raise AutoDDLError(
            f"input {first.name}: batch {first.shape[0]} (dim 0 of {first.shape}) is divisible by no "
            f"axis of mesh {self.mesh}; use a batch that is a multiple of {least}, another mesh, or "
            f"pin={{'{first.name}': '{','.join('B' * self.mesh.ndim)}'}} to keep it whole everywhere"
        )

    def _pin(self, name: str) -> NdSbp | None:
        for pattern, state in self.pins.items():
            if fnmatchcase(name, pattern):
                return state
        return None

    def _states(self, name: str) -> tuple[NdSbp, ...]:
        """Return the states without P of a tensor, or its pinned one."""
        shape, pinned = self.program.tensor[name].shape, self._pin(name)
        if name in self.shared:
            return (broadcast(self.mesh.ndim),)
        if pinned is None:
            return self._cached(
                ("states", shape),
                lambda: tuple(
                    s
                    for s in all_states(
                        shape, self.mesh.shape, partial=False, any_order=self.engine is None
                    )
                    if whole_where_single(s, self.mesh)
                ),
            )
        if pinned not in tuple(all_states(shape, self.mesh.shape, partial=False)):
            raise AutoDDLError(
                f"pin of {name}: state {pinned} does not cut shape {shape} evenly on mesh "
                f"{self.mesh}; choose dims that the axes divide"
            )
        return (pinned,)

    def _held(self, kind: str, name: str, states: tuple[str, ...]) -> Node:
        """Make the node of an input or a parameter with the optimizer states that follow it."""
        possible = self._states(name)
        tensors = [self.program.tensor[t] for t in (name, *states)]
        kinds = tuple((t.shape, t.dtype) for t in tensors)

        def priced() -> tuple[tuple[NdSignature, ...], Floats, Ints]:
            memory = [sum(local_bytes(t, s, self.mesh.shape) for t in tensors) for s in possible]
            choices = tuple({TENSOR: s, GRADIENT: s} for s in possible)
            return choices, np.zeros(len(possible)), np.array(memory, dtype=np.int64)

        return Node(kind, name, *self._cached(("held", kinds, possible), priced))

    def _parameter(self, parameter: Parameter) -> Node:
        node = self._held("parameter", parameter.tensor, parameter.states)
        if parameter.update is None:
            return node
        update = self.program.op[parameter.update]
        key = ("updated", self._key(update), id(node.choices))
        return Node(
            node.kind, node.name, *self._cached(key, lambda: self._updated(node, parameter, update))
        )

    def _updated(
        self, node: Node, parameter: Parameter, update: Op
    ) -> tuple[tuple[NdSignature, ...], Floats, Ints]:
        """Leave the choices that the optimizer can update, with what that costs."""
        follows = {parameter.tensor, parameter.gradient, *parameter.states}
        one = broadcast(self.mesh.ndim)
        valid = {tuple(c[o] for o, _ in update.inputs) for c in self._choices(update)}
        kept, seconds = [], []
        for index, choice in enumerate(node.choices):
            signature = {o: choice[TENSOR] if t in follows else one for o, t in update.inputs}
            if tuple(signature.values()) in valid:
                kept.append(index)
                seconds.append(self._seconds(update, signature))
        if not kept:
            raise AutoDDLError(
                f"pin of {parameter.tensor}: its optimizer's op type {update.type} can't update it in "
                f"state {node.choices[0][TENSOR]}; leave the pin out, or pin it to "
                f"{','.join('B' * self.mesh.ndim)}"
            )
        allowed = tuple(node.choices[i] for i in kept)
        return allowed, np.array(seconds), node.memory_bytes[kept]

    def _output(self, name: str) -> Node:
        choice = {TENSOR: broadcast(self.mesh.ndim)}
        return Node("output", name, (choice,), np.zeros(1), np.zeros(1, dtype=np.int64))

    def _op(self, op: Op) -> Node:
        held = self.kept
        kept = tuple([o for o, t in op.outputs if t in held])
        fixed: tuple[tuple[str, NdSbp | None], ...] = ()
        if self.written or self.shared:
            variables = [(o, t) for o, t in op.inputs if t in self.written or t in self.shared]
            kept += tuple([o for o, t in variables if self.written.get(t) == (op.name, o)])
            fixed = tuple([(o, self._fixed(t)) for o, t in variables if self._fixed(t) is not None])
        key = self.kind[op.name], kept, fixed
        if key not in self.priced:
            self.priced[key] = self._priced(op, kept, dict(fixed))
        return Node("op", op.name, *self.priced[key])

    def _fixed(self, tensor: str) -> NdSbp | None:
        """Return the state that a variable must have where it is updated in place, if it is known."""
        if tensor in self.shared:
            return broadcast(self.mesh.ndim)
        return self._pin(tensor) if tensor in self.written else None

    def _key(self, op: Op) -> Any:
        return self.kind[op.name]

    def _priced(
        self, op: Op, kept: tuple[str, ...], fixed: Mapping[str, NdSbp | None]
    ) -> tuple[tuple[NdSignature, ...], Floats, Ints]:
        found = tuple(c for c in self._choices(op) if all(c[o] == s for o, s in fixed.items()))
        if not found:
            wanted = ", ".join(f"{dict(op.inputs)[o]} {s}" for o, s in fixed.items())
            raise AutoDDLError(
                f"pin: op {op.name} updates {wanted} in place, and {op.type} has no such signature; "
                "leave the pin out"
            )
        operands = {o: self.program.tensor[t] for o, t in op.operands}
        memory = [sum(self._bytes(operands[o], c[o]) for o in kept) for c in found]
        known: dict[tuple[tuple[int, ...] | None, ...], float] = {}  # by local shapes
        seconds = []
        for choice in found:
            local = tuple([self._local(t.shape, choice[o]) for o, t in operands.items()])
            if local not in known:
                known[local] = self._seconds(op, choice)
            seconds.append(known[local])
        return found, np.array(seconds), np.array(memory, dtype=np.int64)

    def _bytes(self, tensor: Tensor, state: NdSbp) -> int:
        return math.prod(self._local(tensor.shape, state) or tensor.shape) * tensor.item_bytes

    def _local(self, shape: tuple[int, ...], state: NdSbp) -> tuple[int, ...] | None:
        key = shape, state
        if key not in self.locals:
            self.locals[key] = local_shape(shape, state, self.mesh.shape)
        return self.locals[key]

    def _choices(self, op: Op) -> tuple[NdSignature, ...]:
        return self._cached(
            ("choices", self._key(op)),
            lambda: choices(
                self.program, op, self.mesh, self.lists, self.allow, engine=self.engine
            ),
        )

    def _seconds(self, op: Op, signature: NdSignature) -> float:
        return signature_s(self.profile.device, self.program, op, signature, self.mesh.shape)

    def _edges(self, nodes: list[Node]) -> tuple[Edge, ...]:
        made: dict[str, tuple[int, str]] = {}
        read: dict[str, list[tuple[int, str]]] = {}
        for index, node in enumerate(nodes):
            if node.kind == "op":
                op = self.program.op[node.name]
                for operand, tensor in op.outputs:
                    made[tensor] = (index, operand)
                for operand, tensor in op.inputs:
                    if tensor in self.written and self.written[tensor] == (op.name, operand):
                        made[tensor] = (index, operand)
                    elif tensor in read:
                        read[tensor].append((index, operand))
                    else:
                        read[tensor] = [(index, operand)]
            elif node.kind == "output":
                read.setdefault(node.name, []).append((index, TENSOR))
            else:
                made[node.name] = (index, TENSOR)
        holder = {node.name: i for i, node in enumerate(nodes) if node.kind == "parameter"}
        for parameter in self.program.parameters:
            if parameter.gradient is not None:
                reader = holder[parameter.tensor]
                read.setdefault(parameter.gradient, []).append((reader, GRADIENT))
        return tuple(self._joined(nodes, made, read))

    def _joined(
        self, nodes: list[Node], made: dict[str, tuple[int, str]],
        read: dict[str, list[tuple[int, str]]],
    ) -> Iterator[Edge]:  # fmt: skip
        """Yield the edges from what makes tensors to what reads them.

        What the engine's own scheduler makes is B everywhere and has none.
        """
        tensors, known = self.program.tensor, self.indices
        ids = [id(node.choices) for node in nodes]
        for name, readers in read.items():
            if name not in made:
                continue
            ends, tensor = [made[name], *readers], tensors[name]
            own = bool(self.allow) and any(OWN in c[o] for n, o in ends for c in nodes[n].choices)
            table = self._table(tensor, own=own)
            number = id(table)
            try:
                source, *wanted = [known[ids[node], operand, number] for node, operand in ends]
            except KeyError:
                source, *wanted = [self._indices(nodes[n].choices, o, table) for n, o in ends]
            pairs = zip(readers, wanted, strict=True)
            yield Edge(
                name, table, ends[0][0], source,
                tuple([(node, states) for (node, _), states in pairs]),
                tuple([operand for _, operand in ends]),
            )  # fmt: skip

    def _table(self, tensor: Tensor, *, own: bool) -> RedistributionTable:
        form = tensor.shape, tensor.dtype, own
        if form not in self.tables:
            self.tables[form] = self.redistributor.table(tensor.shape, tensor.item_bytes, own=own)
        return self.tables[form]

    def _indices(
        self, choices: tuple[NdSignature, ...], operand: str, table: RedistributionTable
    ) -> Ints:
        """Return the state of an operand under each choice, as an index into a table."""
        key = id(choices), operand, id(table)
        found = self.indices.get(key)
        if found is None:
            found = np.array([table.index[c[operand]] for c in choices], dtype=np.int64)
            self.indices[key] = found
        return found

    def _cached(self, key: Any, make: Callable[[], _T]) -> _T:
        if key not in self.cache:
            self.cache[key] = make()
        found: _T = self.cache[key]
        return found


def _written(program: Program) -> tuple[dict[str, tuple[str, str]], frozenset[str]]:
    """Return the variables that one op updates in place, with it, and those that several update.

    Of the latter every op has to see all updates, so they stay broadcast.
    """
    variables = {p.tensor for p in program.parameters}
    rules = {name: find(name) for name in program.places}
    writes = {name: rule.writes for name, rule in rules.items() if rule is not None and rule.writes}
    writers: dict[str, list[tuple[str, str]]] = {}
    for index in sorted(i for name in writes for i in program.places[name]):
        op = program.ops[index]
        for operand, tensor in op.inputs:
            if operand in writes[op.type] and tensor in variables:
                writers.setdefault(tensor, []).append((op.name, operand))
    single = {tensor: ops[0] for tensor, ops in writers.items() if len(ops) == 1}
    return single, frozenset(writers) - frozenset(single)
