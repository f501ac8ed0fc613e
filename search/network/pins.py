"""What a user pins: tensors to states, by patterns of names.

    {"*.fc1.weight": "B,S0"}        parameters, with their optimizer states, and inputs
    {"model.blocks.*.fc1": "!P"}    the results of modules: what ops outside read of it
    {"model.head-matmul-7": "S1"}   the largest result of an op
    {"grad *.fc1.weight": "P"}      gradients of parameters, as the backward pass makes them

A pin is a predicate on the states of some tensors: it leaves of what makes or holds one only the choices
that it allows. How states are told says wanted_states.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import combinations
from typing import NamedTuple

from autoddl.errors import AutoDDLError, one_line, shown
from autoddl.sbp.canonical import apart, canonical
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Op, Program
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.state import Sbp
from autoddl.search.network.wanted_states import Pattern, Wanted, wanted_states

GRADIENTS = "grad "  # before the pattern of their parameters


class Pin(NamedTuple):
    """The states that are wanted of what fits a name pattern, and the text that says so."""

    pattern: str
    text: str
    wanted: Wanted

    def __str__(self) -> str:
        return told(self.pattern, self.text)


def told(pattern: str, text: str) -> str:
    """Return a pin as messages name it."""
    return f"pin {shown(pattern, 100)}: {one_line(text, 60)}"


class Pins:
    """The pins of a program on a mesh.

    Raises:
        AutoDDLError: a pin matches nothing, or says nothing of a state.
    """

    def __init__(
        self, program: Program, mesh: Mesh, pin: Mapping[str, str], *, strides: bool = False
    ) -> None:
        self.program, self.mesh = program, mesh
        self.of_tensor: dict[str, list[Pin]] = {}
        for pattern, text in pin.items():
            try:
                one = Pin(pattern, text, wanted_states(text, mesh))
            except AutoDDLError as error:
                raise AutoDDLError(f"pin {shown(pattern, 100)}: {error}") from None
            turns = one.wanted.with_strides
            if turns and not strides:
                raise AutoDDLError(
                    f"pin {shown(pattern, 100)}: {text.strip()} in {turns[0]}; states are told in the "
                    "order of the mesh and, for this engine, without strides"
                )
            for found in matched(program, pattern):
                own = self._canonical(one, found.tensor) if turns else one
                self.of_tensor.setdefault(found.tensor, []).append(own)

    def of(self, tensor: str) -> tuple[Pin, ...]:
        """Return the pins of a tensor."""
        return tuple(self.of_tensor.get(tensor, ()))

    def strided(self) -> Iterator[tuple[str, tuple[Sbp, ...]]]:
        """Yield the tensors that are pinned to states with strides, with how each axis cuts alone.

        Raises:
            AutoDDLError: cuts fall across each other.
        """
        for name, pins in self.of_tensor.items():
            for state in (state for pin in pins for state in pin.wanted.with_strides):
                cuts = apart(state, self.program.tensor[name].shape, self.mesh.cuts)
                if cuts is None:
                    raise AutoDDLError(
                        f"pin of {name}: the cuts of {state} fall across each other; give strides of "
                        "which one divides the other"
                    )
                yield name, cuts

    def _canonical(self, pin: Pin, tensor: str) -> Pin:
        """Return a pin whose states with strides are written as those of the tensor's choices are.

        Raises:
            AutoDDLError: strides do not divide what they cut.
        """
        shape, mesh, wanted = self.program.tensor[tensor].shape, self.mesh.cuts, pin.wanted
        try:
            known: dict[Pattern, Pattern] = {
                tuple(s): tuple(canonical(s, shape, mesh)) for s in wanted.with_strides
            }
        except AutoDDLError as error:
            raise AutoDDLError(f"pin of {tensor}: {error}") from None
        patterns = tuple(known.get(p, p) for p in wanted.patterns)
        return pin._replace(wanted=wanted._replace(patterns=patterns))


class Matched(NamedTuple):
    """A name that a pattern matches, a tensor that is meant, and the ops that belong to the name."""

    name: str
    tensor: str
    ops: tuple[Op, ...] = ()


def matched(program: Program, pattern: str) -> list[Matched]:
    """Return what a pattern means: of parameters and inputs, modules, ops, tensors the first it matches.

    Raises:
        AutoDDLError: it matches nothing; names the nearest.
    """
    names: list[str] = []
    wanted = pattern.removeprefix(GRADIENTS)
    kinds = (_gradients,) if wanted != pattern else (_held, _results, _made)
    for kind in kinds:
        every = list(kind(program))
        found = [one for one in every if fnmatchcase(one.name, wanted)]
        if found:
            return found
        names += [one.name for one in every]
    near = get_close_matches(wanted, dict.fromkeys(names), 4, 0.0)
    raise AutoDDLError(
        f"pin {shown(pattern, 100)}: matches no "
        f"{'parameter with a gradient' if kinds[0] is _gradients else 'parameter, input, module or op'}; "
        f"nearest are {', '.join(shown(name, 60) for name in near) or 'none'}"
    )


def _gradients(program: Program) -> Iterator[Matched]:
    for p in program.parameters:
        if p.gradient is not None and p.gradient in program.producer:
            yield Matched(p.tensor, p.gradient, (program.producer[p.gradient],))


def _held(program: Program) -> Iterator[Matched]:
    for name in (*program.inputs, *(p.tensor for p in program.parameters)):
        yield Matched(name, name)


def _results(program: Program) -> Iterator[Matched]:
    """Yield the results of modules: what forward ops outside read, or the program returns."""
    inside: dict[str, dict[str, Op]] = {}
    for op in program.ops:
        path = op.module.split(".") if op.module and op.phase == "forward" else []
        for depth in range(len(path)):
            inside.setdefault(".".join(path[: depth + 1]), {})[op.name] = op
    for module, ops in inside.items():
        for op in ops.values():
            for _, tensor in op.outputs:
                readers = [r for r, _ in program.consumers.get(tensor, ()) if r.phase == "forward"]
                if tensor in program.outputs or any(r.name not in ops for r in readers):
                    yield Matched(module, tensor, tuple(ops.values()))


def _made(program: Program) -> Iterator[Matched]:
    """Yield the results of ops, but for updates, whose parameters may be pinned."""
    size, number = program.columns.size_bytes, program.columns.number
    for op in program.ops:
        tensors = [tensor for _, tensor in op.outputs]
        if tensors and not op.is_update:
            yield Matched(op.name, max(tensors, key=lambda t: size[number[t]]), (op,))


def left(what: str, choices: Sequence[NdSignature], pinned: Sequence[tuple[str, Pin]]) -> list[int]:
    """Return which choices of a variable the pins of its operands leave.

    Raises:
        AutoDDLError: none; names the pins that leave none, as few as do, and the nearest choice.
    """

    def fitting(pins: Sequence[tuple[str, Pin]]) -> list[int]:
        return [
            number
            for number, choice in enumerate(choices)
            if all(pin.wanted.has(choice[operand]) for operand, pin in pins)
        ]

    found = fitting(pinned)
    if found:
        return found
    tried = (some for count in range(1, len(pinned)) for some in combinations(pinned, count))
    least = next((some for some in tried if not fitting(some)), pinned)
    pins = list(dict.fromkeys(str(pin) for _, pin in least))
    several = len(pins) > 1
    near = min(choices, key=lambda c: sum(pin.wanted.distance(c[o]) for o, pin in least))
    raise AutoDDLError(
        f"{' and '.join(pins)} {'contradict each other, and leave' if several else 'leaves'} "
        f"{what} without a choice; the nearest is "
        f"{', '.join(f'{name} {state}' for name, state in near.items())}; "
        f"{'leave one of them out' if several else 'change the pin'}"
    )
