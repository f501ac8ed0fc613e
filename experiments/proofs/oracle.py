"""Prove the rules with the NumPy oracle: what they list is right, and what is right they list."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

import numpy as np

from autoddl.sbp.numpy_oracle import simulated_ops
from autoddl.sbp.numpy_oracle.trial import agree
from autoddl.sbp.rules import registry
from autoddl.sbp.rules.candidates import NdSignature, nd_products, nd_signatures
from autoddl.sbp.rules.registry import OpView, signatures
from autoddl.sbp.rules.strided_cuts import every_strided
from autoddl.sbp.shares import Cut, Cuts, Shares, places
from autoddl.sbp.state import Sbp
from experiments.rule_cases import CASES, case_id, threefold

_BY_3_1 = Shares((3, 1))
MESHES: tuple[tuple[Cut, ...], ...] = (
    (2,), (4,), (2, 2), (_BY_3_1,), (Shares((2, 1, 1)),), (_BY_3_1, 2), (2, _BY_3_1),
)  # fmt: skip
THIRDS = (Shares((2, 1)),)
"""A mesh that cuts no dim of most cases: these are run on it with all their dims three times as long."""
STRIDED_MESHES: tuple[tuple[int, ...], ...] = ((2,), (4,), (2, 2))


@dataclass(frozen=True)
class OpResult:
    """What was found of one op type, over all its cases.

    `checked` signatures that we list were run, and `strided` ones with strides; `wrong` says which gave
    other numbers than one device. Of the one-axis signatures that are right on 2 devices there are
    `valid`; `found` of them are ours and `missing` names the rest. Inputs that are not read, or of which
    only the shape is, do not count there (they are written "any"): any state of theirs is right.
    """

    op_type: str
    cases: int
    checked: int
    strided: int
    wrong: tuple[str, ...]
    valid: int
    found: int
    missing: tuple[str, ...]


@dataclass(frozen=True)
class OracleReport:
    """The result for every op type, sorted by name, and the seed of the random inputs."""

    seed: int
    ops: tuple[OpResult, ...]

    columns = ("op type", "cases", "checked", "strided", "wrong", "listed", "right", "missing")

    @property
    def faults(self) -> tuple[str, ...]:
        """Say, one line each, which signatures that we list are wrong."""
        return tuple(line for op in self.ops for line in op.wrong)

    @property
    def missing(self) -> tuple[str, ...]:
        """Say, one line each, which right signatures we do not list; they cost speed only."""
        return tuple(line for op in self.ops for line in op.missing)

    @property
    def completeness(self) -> float:
        """Return which share of the right one-axis signatures we list, 0 to 1."""
        valid = sum(op.valid for op in self.ops)
        return sum(op.found for op in self.ops) / valid if valid else 1.0

    def rows(self) -> Iterable[tuple[str, ...]]:
        """Return one row per op type."""
        for op in self.ops:
            counts = (op.cases, op.checked, op.strided, len(op.wrong), op.found, op.valid)
            yield (op.op_type, *map(str, counts), "\n".join(op.missing))

    def summary(self) -> str:
        """Sum up in one line."""
        return (
            f"{len(self.ops)} op types, {sum(op.cases for op in self.ops)} cases: "
            f"{sum(op.checked for op in self.ops)} signatures and "
            f"{sum(op.strided for op in self.ops)} with strides run on simulated ranks, "
            f"{len(self.faults)} wrong; of {sum(op.valid for op in self.ops)} right one-axis "
            f"signatures {len(self.missing)} missing ({self.completeness:.2%} listed)"
        )

    def to_json(self) -> dict[str, Any]:
        """Return everything that was seen, as plain JSON values."""
        return asdict(self)


def run(
    *,
    seed: int,
    op_types: Collection[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    cases: Sequence[OpView] = CASES,
    sample: int | None = None,
) -> OracleReport:
    """Check every rule of the registry, or those of `op_types`, on all of its cases.

    Every case has random inputs of its own, which depend on `seed` alone. `progress` is told how
    many cases are done, and of how many. An op type without a case has a result with 0 cases. With a
    `sample`, so many signatures are drawn where a rule lists more for an op, but on 2 devices.
    """
    wanted = {rule.op_type for rule in registry.all_rules()}
    if op_types is not None:
        wanted &= set(op_types)
    chosen = [view for view in cases if view.type in wanted]
    results: dict[str, OpResult] = {
        name: OpResult(name, 0, 0, 0, (), 0, 0, ()) for name in sorted(wanted)
    }
    for done, view in enumerate(chosen, 1):
        results[view.type] = _added(results[view.type], _check(view, seed, sample))
        if progress is not None:
            progress(done, len(chosen))
    return OracleReport(seed, tuple(results.values()))


def _added(a: OpResult, b: OpResult) -> OpResult:
    sums = (x + y for x, y in zip(astuple(a)[1:], astuple(b)[1:], strict=True))
    return OpResult(a.op_type, *sums)


def _check(view: OpView, seed: int, sample: int | None) -> OpResult:
    rng = np.random.default_rng([seed, zlib.crc32(repr(view).encode())])
    on_two = _judged(view, MESHES[:1], rng)
    judged = on_two + _judged(view, MESHES[1:], rng, sample)
    judged += _judged(threefold(view), [THIRDS], rng, sample)
    strided = _judged(view, STRIDED_MESHES, rng, sample, listed=with_strides)
    ours = [{name: state[0] for name, state in s.items()} for s, fault in on_two if fault is None]
    right = simulated_ops.valid_signatures(view, 2, rng)
    others = [r for r in right if not any(agree(r, signature) for signature in ours)]
    missing = tuple(sorted(f"{case_id(view)}: {_text(view, signature)}" for signature in others))
    wrong = tuple(fault for _, fault in judged + strided if fault is not None)
    listed, counts = len(right) - len(others), (len(judged), len(strided))
    return OpResult(view.type, 1, *counts, wrong, len(right), listed, missing)


def _judged(
    view: OpView,
    meshes: Iterable[Cuts],
    rng: np.random.Generator,
    sample: int | None = None,
    *,
    listed: Callable[[OpView, Cuts], tuple[NdSignature, ...]] = nd_signatures,
) -> list[tuple[NdSignature, str | None]]:
    """Return the signatures of an op on meshes, each with what is wrong with it."""
    inputs = simulated_ops.sample_inputs(view, rng)
    expected, judged = simulated_ops.on_one_device(view, inputs), []
    for mesh in meshes:
        found = listed(view, mesh)
        if sample is not None and len(found) > sample:
            found = tuple(random.Random(int(rng.integers(2**32))).sample(found, sample))
        for signature in found:
            fault = simulated_ops.check_signature(
                view, signature, mesh, rng, inputs=inputs, expected=expected
            )
            judged.append((signature, fault))
    return judged


def with_strides(view: OpView, mesh: Cuts) -> tuple[NdSignature, ...]:
    """Return the signatures that cut some operand with a stride, whatever reshapes are around."""
    one_axis = [signatures(view) + every_strided(view, places(size)) for size in mesh]
    return tuple(
        signature
        for signature in nd_products(view, mesh, one_axis)
        if any(sbp.stride is not None for state in signature.values() for sbp in state)
    )


def _text(view: OpView, signature: Mapping[str, Sbp]) -> str:
    """Write a signature as "x_0 S0, like_0 any -> y_0 S0"."""
    parts = (
        ", ".join(f"{name} {signature.get(name, 'any')}" for name in side)
        for side in (view.inputs, view.outputs)
    )
    return " -> ".join(parts).strip()
