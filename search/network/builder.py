"""Program + mesh + profile → CostNetwork: what every node may choose from, and what that costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial, reduce
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from autoddl.engine.model import EngineModel, Limits, StreamUse, counted
from autoddl.errors import AutoDDLError
from autoddl.perfmodel.places import MeshPlace, slowest
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.redistribution import Strided
from autoddl.perfmodel.roofline import OpWork, device_s
from autoddl.sbp.canonical import strided_states
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Op, Parameter, Program, Tensor
from autoddl.sbp.program.live_across import kept_flags
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.rules.registry import find
from autoddl.sbp.shards import all_states, local_bytes, local_shape
from autoddl.sbp.state import NdSbp, broadcast
from autoddl.search.network.choices import SignatureLists, choices
from autoddl.search.network.cost_network import (
    GRADIENT,
    TENSOR,
    CostNetwork,
    Domain,
    Floats,
    Ints,
    Setting,
    Variables,
    ints,
    shared,
)
from autoddl.search.network.pins import Pin, Pins, left
from autoddl.search.network.scopes import factors_of
from autoddl.search.network.strided import StridedCuts, no_strides, strided_cuts

_T = TypeVar("_T")

MOST_RESULTS = 48  # of an op that is looked at with others; they are bits of a float


def build(
    program: Program,
    mesh: Mesh,
    profile: Profile,
    engine: EngineModel,
    *,
    pin: Mapping[str, str] | None = None,
    lists: SignatureLists | None = None,
    allow: frozenset[str] = frozenset(),
    streams: StreamUse | None = None,
    launch: tuple[int, int] | None = None,
    kinds: tuple[str, ...] = (),
    strides: bool = False,
) -> CostNetwork:
    """Return the problem of planning `program` on `mesh` under `profile`.

    `pin` maps name patterns to states, e.g. {"*.fc1.weight": "B,S(0)"} (pins.py);
    `lists` gives the signatures of ops without a rule, which are all-broadcast otherwise; `allow` names
    the approximations that are permitted ("local_batchnorm"). Choices are those that the engine can
    execute; boxings run on these of its `streams`, by default the usual ones. A `launch` has up to so
    many MiB and collectives, by default as many as the engine's. On a mesh with shares `kinds` are those
    of its devices, by rank. With `strides`, or where pins have some, there are cuts with strides, too, if
    the engine has them.

    Raises:
        AutoDDLError: a pin matches nothing or can't be.
    """
    setting = Setting(program, mesh, profile, engine, streams or engine.streams[0], launch, kinds)
    pins = Pins(program, mesh, dict(pin or {}), strides=engine.limits.strides)
    pinned = list(pins.strided())
    may = strides or bool(pinned)
    cuts = strided_cuts(program, mesh, engine.limits, pinned) if may else no_strides(program)
    builder = _Builder(program, mesh, setting.places, pins, lists, allow, engine.limits, cuts)
    variables, owned = builder.variables(), bool(allow)
    factors = factors_of(
        program, variables, builder.written, setting.redistributor, owned=owned, strided=cuts
    )
    return CostNetwork(setting, variables, factors, builder.written)


class _Builder:
    """Collect variables; everything that depends on shapes only is computed once per shape."""

    def __init__(
        self, program: Program, mesh: Mesh, places: Sequence[MeshPlace], pins: Pins,
        lists: SignatureLists | None, allow: frozenset[str], limits: Limits, strided: StridedCuts,
    ) -> None:  # fmt: skip
        self.strided = strided
        self.program, self.mesh, self.places, self.lists = program, mesh, places, lists
        self.allow, self.limits = allow, limits
        self.written, self.shared = _written(program)
        self.pins = pins
        self.kept = kept_flags(program)
        self.cache: dict[Any, Any] = {}
        self.local = cache(local_shape)

    def variables(self) -> Variables:
        """Return all variables with their domains; the updates of parameters are no ops here."""
        program, place = self.program, self.program.columns.place
        updates = [place[p.update] for p in program.parameters if p.update is not None]
        ops = np.delete(np.arange(len(program.ops)), updates)
        parameters = [p for p in program.parameters if p.tensor not in self.written]
        returned = list(dict.fromkeys(program.outputs))
        held = [*[self._held(name, ()) for name in program.inputs], *self._parameters(parameters)]
        of_ops, which = self._ops(ops)
        whole = {TENSOR: broadcast(self.mesh.ndim)}
        output = Domain((whole,), np.zeros(1), np.zeros(1, dtype=np.int64))
        form, forms = shared([*held, *of_ops, *[output] * len(returned)])
        first, last = len(held), len(held) + len(of_ops)
        every = list(place)  # names of ops
        planned = [every[i] for i in ops.tolist()]
        names = [program.inputs, [p.tensor for p in parameters], planned, returned]
        return Variables(
            ("input", "parameter", "op", "output"), np.repeat(np.arange(4), list(map(len, names))),
            list(chain(*names)), forms,
            np.concatenate([form[:first], form[first:last][which], form[last:]]),
            np.concatenate([np.full(first, -1), ops, np.full(len(returned), -1)]),
        )  # fmt: skip

    def _states(self, name: str) -> tuple[NdSbp, ...]:
        """Return the states without P that a tensor may have."""
        found: tuple[NdSbp, ...] = (broadcast(self.mesh.ndim),)
        if name not in self.shared:
            shape = self.program.tensor[name].shape
            cuts = self.strided.cuts[int(self.strided.of_tensor[self.program.columns.number[name]])]
            found = self._cached(("states", shape, cuts), lambda: self._every_state(shape, cuts))
        pins = [(name, pin) for pin in self.pins.of(name)]
        if pins:
            found = tuple(found[i] for i in left(name, [{name: s} for s in found], pins))
        return found

    def _every_state(self, shape: tuple[int, ...], cuts: Strided) -> tuple[NdSbp, ...]:
        """Return the states without P of tensors of a shape, those with these cuts last."""
        mesh, order = self.mesh.cuts, self.limits.any_order
        plain = all_states(shape, mesh, partial=False, any_order=order)
        if not cuts:
            return tuple(plain)
        return (*plain, *strided_states(shape, mesh, cuts, partial=False, any_order=order))

    def _held(self, name: str, states: tuple[str, ...]) -> Domain:
        """Return the form of an input or a parameter with the optimizer states that follow it."""
        possible = self._states(name)
        tensors = [self.program.tensor[t] for t in (name, *states)]
        kinds = tuple((t.shape, t.dtype) for t in tensors)

        def priced() -> Domain:
            memory = [
                max(
                    counted(sum(local_bytes(t, s, place.cuts) for t in tensors), place.room)
                    for place in self.places
                )
                for s in possible
            ]
            choices = tuple({TENSOR: s, GRADIENT: s} for s in possible)
            return Domain(choices, np.zeros(len(possible)), ints(memory))

        return self._cached(("held", kinds, possible), priced)

    def _parameters(self, parameters: Sequence[Parameter]) -> Iterator[Domain]:
        """Yield the forms of parameters, of which many are alike: where none is pinned or shared."""
        columns, known = self.program.columns, dict[object, Domain]()
        number, form = columns.number, columns.form.tolist()
        place, ops = columns.place, self.program.ops
        for parameter in parameters:
            tensors = (parameter.tensor, *parameter.states)
            special = parameter.tensor if self.pins.of_tensor or self.shared else ""
            kind = -1 if parameter.update is None else self._key(ops[place[parameter.update]])
            strided = int(self.strided.of_tensor[number[parameter.tensor]])
            look = special, kind, strided, tuple([form[number[name]] for name in tensors])
            if look not in known:
                known[look] = self._parameter(parameter)
            yield known[look]

    def _parameter(self, parameter: Parameter) -> Domain:
        form = self._held(parameter.tensor, parameter.states)
        if parameter.update is None:
            return form
        update = self.program.op[parameter.update]
        key = ("updated", self._key(update), id(form.choices))
        return self._cached(key, lambda: self._updated(form, parameter, update))

    def _updated(self, form: Domain, parameter: Parameter, update: Op) -> Domain:
        """Leave the choices that the optimizer can update, with what that costs."""
        follows = {parameter.tensor, parameter.gradient, *parameter.states}
        one = broadcast(self.mesh.ndim)
        valid = {tuple(c[o] for o, _ in update.inputs) for c in self._choices(update)}
        kept, seconds = [], []
        for index, choice in enumerate(form.choices):
            signature = {o: choice[TENSOR] if t in follows else one for o, t in update.inputs}
            if tuple(signature.values()) in valid:
                kept.append(index)
                work_at = partial(OpWork.of, self.program, update, signature)
                seconds.append(slowest(self.places, work_at)[0])
        if not kept:
            pins = " and ".join(map(str, self.pins.of(parameter.tensor)))
            raise AutoDDLError(
                f"{pins}: the optimizer of {parameter.tensor}, {update.type} can't update it in state "
                f"{form.choices[0][TENSOR]}; leave the pin out, or pin it to "
                f"{','.join('B' * self.mesh.ndim)}"
            )
        allowed = tuple(form.choices[i] for i in kept)
        return Domain(allowed, np.array(seconds), form.memory_bytes[kept])

    def _ops(self, ops: Ints) -> tuple[list[Domain], Ints]:
        """Return the forms of ops, of which many are alike, and which of them each has.

        A form depends on the op's kind, on which of its results live across the step, on pins of these,
        and on variables that are updated in place.
        """
        columns, outputs = self.program.columns, self.program.columns.outputs
        special = np.zeros(len(columns.form), dtype=np.bool_)
        special[ints([columns.number[name] for name in (*self.written, *self.shared)])] = True
        alone = np.diff(outputs.begin) > MOST_RESULTS
        alone[columns.inputs.op[special[columns.inputs.tensor]]] = True
        special[ints([columns.number[name] for name in self.pins.of_tensor])] = True
        alone[outputs.op[special[outputs.tensor]]] = True
        place = np.minimum(np.arange(len(outputs.op)) - outputs.begin[outputs.op], MOST_RESULTS)
        lives = self.kept[outputs.tensor] * 2.0**place
        sets, live = np.unique(
            np.bincount(outputs.op, lives, minlength=len(alone)), return_inverse=True
        )
        kinds = columns.kind * len(self.strided.signatures) + self.strided.of_op
        looks = kinds * len(sets) + live
        looks[alone] = -1 - np.flatnonzero(alone)
        _, first, found = np.unique(looks[ops], return_index=True, return_inverse=True)
        order = first.argsort()
        return (
            [self._op(self.program.ops[op]) for op in ops[first[order]].tolist()],
            order.argsort()[found],
        )

    def _op(self, op: Op) -> Domain:
        number = self.program.columns.number
        kept = tuple([o for o, t in op.outputs if self.kept[number[t]]])
        updated = [(o, t) for o, t in op.inputs if self.written.get(t) == (op.name, o)]
        kept += tuple([o for o, _ in updated])
        whole = tuple([o for o, t in op.inputs if t in self.shared])
        pins = tuple([(o, pin) for o, t in (*op.outputs, *updated) for pin in self.pins.of(t)])
        key = "op", self._key(op), kept, whole, pins
        return self._cached(key, lambda: self._priced(op, kept, whole, pins))

    def _key(self, op: Op) -> tuple[int, int]:
        """Return equal pairs for ops of which all is equal that forms depend on."""
        place = self.program.columns.place[op.name]
        return int(self.program.columns.kind[place]), int(self.strided.of_op[place])

    def _priced(
        self, op: Op, kept: tuple[str, ...], whole: tuple[str, ...], pins: Sequence[tuple[str, Pin]]
    ) -> Domain:
        one = broadcast(self.mesh.ndim)
        found = tuple(c for c in self._choices(op) if all(c[o] == one for o in whole))
        if pins:
            found = tuple(found[i] for i in left(f"op {op.name}", found, pins))
        operands = {o: self.program.tensor[t] for o, t in op.operands}
        seconds, sizes = zip(
            *[self._at(place, op, operands, found, kept) for place in self.places], strict=True
        )
        return Domain(found, reduce(np.maximum, seconds), reduce(np.maximum, sizes))

    def _at(
        self, place: MeshPlace, op: Op, operands: Mapping[str, Tensor], found: Sequence[NdSignature],
        kept: Sequence[str],
    ) -> tuple[Floats, Ints]:  # fmt: skip
        """Return the seconds of an op at a place under each signature, and the bytes of what is kept."""
        local = {  # by operand and state
            o: {s: self.local(t.shape, s, place.cuts) or t.shape for s in {c[o] for c in found}}
            for o, t in operands.items()
        }
        shapes = [tuple([of[choice[o]] for o, of in local.items()]) for choice in found]
        works = {each: OpWork.local(op, operands, each) for each in dict.fromkeys(shapes)}
        known = {
            each: max([device_s(device, work) for device in place.devices])
            for each, work in works.items()
        }
        sizes = [
            counted(
                sum(math.prod(local[o][c[o]]) * operands[o].item_bytes for o in kept), place.room
            )
            for c in found
        ]
        return np.array([known[each] for each in shapes]), ints(sizes)

    def _choices(self, op: Op) -> tuple[NdSignature, ...]:
        return self._cached(
            ("choices", self._key(op)),
            lambda: choices(
                self.program,
                op,
                self.mesh,
                self.lists,
                self.allow,
                limits=self.limits,
                strided=self.strided.signatures[self._key(op)[1]],
            ),
        )

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
    updates = {p.update for p in program.parameters}
    columns = program.columns
    rules = [find(name) for name in columns.types]
    writes = [rule is not None and bool(rule.writes) for rule in rules]
    writers: dict[str, list[tuple[str, str]]] = {}
    for index in np.flatnonzero(np.array(writes, dtype=np.bool_)[columns.type]).tolist():
        op, rule = program.ops[index], rules[columns.type[index]]
        if op.name in updates:  # these have the states of their parameters anyway
            continue
        for operand, tensor in op.inputs:
            if rule is not None and operand in rule.writes and tensor in variables:
                writers.setdefault(tensor, []).append((op.name, operand))
    single = {tensor: ops[0] for tensor, ops in writers.items() if len(ops) == 1}
    return single, frozenset(writers) - frozenset(single)
