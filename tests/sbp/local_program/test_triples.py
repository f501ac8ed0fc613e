"""The checker accepts what layouts are lowered to, and refuses it with one instruction made wrong."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from autoddl.errors import AutoDDLError
from autoddl.sbp.local_program.instructions import (
    Communication,
    Computation,
    Instruction,
    LocalProgram,
    LocalTensor,
    Property,
)
from autoddl.sbp.local_program.triples import check
from autoddl.sbp.shards import all_states
from autoddl.sbp.state import NdSbp
from tests.support.local_programs import MESHES, MODELS, local_program

KINDS = ("dropped", "swapped", "another group", "another dim", "another state")
EACH = 5  # mutations of a kind for each model: 200 of 8 models


@pytest.mark.parametrize("name", MODELS)
def test_what_layouts_are_lowered_to_is_right(name: str) -> None:
    """40 layouts: of each model three with shares, data parallelism one of these, and two without."""
    meshes = random.Random(name).sample(MESHES[3:], 3) + random.Random(name).sample(MESHES[:3], 2)
    for seed, mesh in enumerate(meshes):
        local = local_program(name, mesh, seed)
        check(local)
        ops = [each.op for each in local.instructions if isinstance(each, Computation)]
        assert sorted(ops) == sorted(op.name for op in local.program.ops)
        assert len(local.instructions) > len(ops)


@pytest.mark.parametrize("name", MODELS)
def test_one_wrong_instruction_is_named(name: str) -> None:
    local, rng = local_program(name, "2:3/1x2", 1), random.Random(name)
    for kind in KINDS:
        drawn = list(itertools.islice(mutated(local, kind, rng), EACH))
        assert len(drawn) == EACH
        for wrong, numbers in drawn:
            with pytest.raises(AutoDDLError) as error:
                check(wrong)
            assert named(wrong, str(error.value)) in numbers, (kind, str(error.value))


def test_a_sum_that_is_taken_for_the_whole_is_refused() -> None:
    """Each reader has what it reads: only the op that claims the whole of a sum is wrong."""
    local, count = local_program("deep mlp", "2:3/1", 1), 0
    every = local.instructions
    for number, each in enumerate(every):
        if not isinstance(each, Communication) or each.primitive != "all_reduce":
            continue
        source, goal = each.reads.property, each.establishes
        readers = [n for n, other in enumerate(every) if source in reads(other)]
        (maker,) = (n for n, other in enumerate(every) if source in results(other))
        made = every[maker]
        if readers == [number] and isinstance(made, Computation):
            claims = tuple((o, goal if h.property == source else h) for o, h in made.establishes)
            changed = [*every[:maker], replace(made, establishes=claims), *every[maker + 1 :]]
            wrong = replace(local, instructions=(*changed[:number], *changed[number + 1 :]))
            assert first_unmet(wrong) is None
            with pytest.raises(AutoDDLError, match="is no signature of") as error:
                check(wrong)
            assert named(wrong, str(error.value)) == maker
            count += 1
    assert count > 3


def test_what_is_overwritten_is_read_before() -> None:
    """An update as early as its gradient is there, before the backward pass has read the weight."""
    local = local_program("mlp", "2:3/1", 0)
    every, late, tainted = local.instructions, list[Instruction](), set[Property]()
    op = local.program.op
    for each in every:
        reader = isinstance(each, Computation) and op[each.op].phase == "backward"
        operands = (
            {h.property.tensor for _, h in each.reads} if isinstance(each, Computation) else ()
        )
        if (reader and "model.fc2.weight" in operands) or reads(each) & tainted:
            late.append(each)
            tainted |= results(each)
    order = [each for each in every if each not in late] + late
    wrong = replace(local, instructions=tuple(order))
    assert first_unmet(wrong) is None
    with pytest.raises(AutoDDLError, match="overwritten 1 times, on one device 0 times") as error:
        check(wrong)
    assert named(wrong, str(error.value)) == order.index(late[0])


def test_what_is_overwritten_holds_in_no_other_state() -> None:
    """An update of gathered copies leaves the shards that are kept as they were."""
    local, whole = local_program("mlp", "2:3/1", 1), NdSbp.parse("B")
    program, mesh = local.program, local.mesh
    number, update = next(
        (number, each)
        for number, each in enumerate(local.instructions)
        if isinstance(each, Computation)
        and program.op[each.op].is_update
        and dict(each.reads)["model_0"].property.state != whole
    )
    held = [h.property for _, h in update.reads if h.property.state != whole]
    copies = [Communication.of(program.tensor[name], cut, whole, mesh) for name, cut in held]
    states = {operand: whole for operand, _ in update.reads}
    copied = Computation.of(program, program.op[update.op], states, mesh)
    before, behind = local.instructions[:number], local.instructions[number + 1 :]
    wrong = replace(local, instructions=(*before, *copies, copied, *behind))
    with pytest.raises(AutoDDLError, match=r"kept: .* does not hold; the tensor is in"):
        check(wrong)


def named(local: LocalProgram, error: str) -> int:
    """Return the number of the instruction that an error names, and shows."""
    assert error.startswith("local program: ") and "\n" not in error
    if error.startswith("local program: kept: "):
        return len(local.instructions)
    number = int(error.removeprefix("local program: instruction ").partition(",")[0])
    assert str(local.instructions[number])[:60] in error
    return number


def mutated(
    local: LocalProgram, kind: str, rng: random.Random
) -> Iterator[tuple[LocalProgram, set[int]]]:
    """Yield programs with one mutation, and which instruction may be named for it.

    That is the wrong one, or where that may be by itself the first that reads what does not hold.
    """
    every = list(local.instructions)
    numbers = list(range(len(every)))
    rng.shuffle(numbers)
    for number in numbers:
        for changed in _changed(local, every, number, kind, rng):
            wrong = replace(local, instructions=tuple(changed))
            unmet = first_unmet(wrong)
            itself = {number} if len(changed) == len(every) and kind != "swapped" else set()
            if kind == "another group":
                yield wrong, itself
            elif unmet is not None:
                yield wrong, itself | {unmet}


def _changed(
    local: LocalProgram, every: list[Instruction], number: int, kind: str, rng: random.Random
) -> Iterator[list[Instruction]]:
    each = every[number]
    if kind == "dropped":
        yield [*every[:number], *every[number + 1 :]]
    elif kind == "swapped":
        later = [n for n in range(number + 1, len(every)) if reads(every[n]) & results(each)]
        if later:
            changed = list(every)
            changed[number], changed[later[0]] = changed[later[0]], each
            yield changed
    elif kind == "another group" and isinstance(each, Communication):
        other = tuple(local.mesh.groups(*rng.choice([(0,), (1,), (0, 1)])))
        if other != each.groups:
            yield [*every[:number], replace(each, groups=other), *every[number + 1 :]]
    elif kind == "another dim" and isinstance(each, Communication):
        goal = each.establishes.property
        for other in _states(local, goal):
            moved = [(a, b) for a, b in zip(goal.state, other, strict=True) if a is not b]
            if all(a.is_split and b.is_split for a, b in moved):
                held = LocalTensor.of(local.program.tensor[goal.tensor], other, local.mesh)
                yield [*every[:number], replace(each, establishes=held), *every[number + 1 :]]
    elif kind == "another state":
        yield from (
            [*every[:number], wrong, *every[number + 1 :]]
            for wrong in _in_another_state(local, each, rng)
        )


def _in_another_state(
    local: LocalProgram, each: Instruction, rng: random.Random
) -> Iterator[Instruction]:
    """Yield the instruction with one result in another state, all else being consistent with that."""
    held = each.establishes if isinstance(each, Communication) else None
    if held is None and isinstance(each, Computation) and each.establishes:
        held = each.establishes[0][1]
    others = _states(local, held.property) if held is not None else []
    if held is None or not others:
        return
    tensor, other = local.program.tensor[held.property.tensor], rng.choice(others)
    if isinstance(each, Communication):
        try:
            yield Communication.of(tensor, each.reads.property.state, other, local.mesh)
        except AutoDDLError:  # there is no such boxing
            return
    else:
        (operand, _), *rest = each.establishes
        changed = (operand, LocalTensor.of(tensor, other, local.mesh))
        yield replace(each, establishes=(changed, *rest))


def _states(local: LocalProgram, held: Property) -> list[NdSbp]:
    shape = local.program.tensor[held.tensor].shape
    return [s for s in all_states(shape, local.mesh.cuts) if s != held.state]


def reads(each: Instruction) -> set[Property]:
    held = [each.reads] if isinstance(each, Communication) else [h for _, h in each.reads]
    return {h.property for h in held}


def results(each: Instruction) -> set[Property]:
    held = (
        [each.establishes] if isinstance(each, Communication) else [h for _, h in each.establishes]
    )
    return {h.property for h in held}


def first_unmet(local: LocalProgram) -> int | None:
    """Return the first instruction that reads what no earlier one establishes.

    The number behind the last one stands for an op that is missing; None: nothing is unmet.
    """
    there = {held.property for held in local.given}
    for number, each in enumerate(local.instructions):
        if not reads(each) <= there:
            return number
        there |= results(each)
    complete = len(local.computations) == len(local.program.ops)
    return None if complete else len(local.instructions)
