"""Prove the rules with the NumPy oracle: what they list is right, and nothing right is missing.

    python -m experiments.proofs.oracle [OP_TYPE …]

runs over the case table and prints one line for every op type.
"""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autoddl.sbp.numeric import check_signature, on_one_device, sample_inputs, valid_signatures
from autoddl.sbp.rules import registry
from autoddl.sbp.rules.candidates import nd_signatures
from autoddl.sbp.rules.registry import OpView
from autoddl.sbp.state import Sbp
from autoddl.sbp.trial import agree
from experiments.rule_cases import CASES, case_id

MESHES = ((2,), (4,), (2, 2))
SAMPLE = 60


@dataclass(frozen=True)
class OpResult:
    """What was found of one op type, over all its cases.

    `checked` signatures that we list were run, `wrong` says which gave other numbers than one
    device. Of the one-axis signatures that are right on 2 devices there are `valid`; `found` of
    them are ours and `missing` names the rest. Inputs that are not read, or of which only the shape
    is, do not count there (they are written "any"): any state of theirs is right.
    """

    op_type: str
    cases: int
    checked: int
    wrong: tuple[str, ...]
    valid: int
    found: int
    missing: tuple[str, ...]


@dataclass(frozen=True)
class OracleReport:
    """The result for every op type, sorted by name, and the seed of the random inputs."""

    seed: int
    ops: tuple[OpResult, ...]

    @property
    def checked(self) -> int:
        """Count the signatures that were run."""
        return sum(op.checked for op in self.ops)

    @property
    def wrong(self) -> tuple[str, ...]:
        """List what is wrong, one line each."""
        return tuple(line for op in self.ops for line in op.wrong)

    @property
    def missing(self) -> tuple[str, ...]:
        """List what is right but not ours, one line each."""
        return tuple(line for op in self.ops for line in op.missing)

    @property
    def completeness(self) -> float:
        """Return which share of the right one-axis signatures is ours, 0 to 1."""
        valid = sum(op.valid for op in self.ops)
        return sum(op.found for op in self.ops) / valid if valid else 1.0


def run(
    *,
    seed: int,
    op_types: Collection[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    cases: Sequence[OpView] = CASES,
    sample: int = SAMPLE,
) -> OracleReport:
    """Check every rule of the registry, or those of `op_types`, on all of its cases.

    Every case has random inputs of its own, which depend on `seed` alone. `progress` is told how
    many cases are done, and of how many. An op type without a case has a result with 0 cases. Where
    a rule lists more than `sample` signatures of an op on a mesh of 4 devices, so many are drawn.
    """
    wanted = {rule.op_type for rule in registry.all_rules()}
    if op_types is not None:
        wanted &= set(op_types)
    chosen = [view for view in cases if view.type in wanted]
    results: dict[str, OpResult] = {
        name: OpResult(name, 0, 0, (), 0, 0, ()) for name in sorted(wanted)
    }
    for done, view in enumerate(chosen, 1):
        results[view.type] = _added(results[view.type], _check(view, seed, sample))
        if progress is not None:
            progress(done, len(chosen))
    return OracleReport(seed, tuple(results.values()))


def _added(a: OpResult, b: OpResult) -> OpResult:
    return OpResult(
        a.op_type,
        a.cases + b.cases,
        a.checked + b.checked,
        a.wrong + b.wrong,
        a.valid + b.valid,
        a.found + b.found,
        a.missing + b.missing,
    )


def _check(view: OpView, seed: int, sample: int) -> OpResult:
    rng = np.random.default_rng([seed, zlib.crc32(repr(view).encode())])
    inputs = sample_inputs(view, rng)
    expected = on_one_device(view, inputs)
    checked, wrong, ours = 0, [], []
    for mesh in MESHES:
        found = nd_signatures(view, mesh)
        if len(found) > sample and mesh != (2,):
            found = tuple(random.Random(int(rng.integers(2**32))).sample(found, sample))
        for signature in found:
            fault = check_signature(view, signature, mesh, rng, inputs=inputs, expected=expected)
            if fault is not None:
                wrong.append(fault)
            elif mesh == (2,):
                ours.append({name: state[0] for name, state in signature.items()})
        checked += len(found)
    right = valid_signatures(view, 2, rng)
    others = [r for r in right if not any(agree(r, signature) for signature in ours)]
    missing = tuple(sorted(f"{case_id(view)}: {_text(view, signature)}" for signature in others))
    listed = len(right) - len(others)
    return OpResult(view.type, 1, checked, tuple(wrong), len(right), listed, missing)


def _text(view: OpView, signature: Mapping[str, Sbp]) -> str:
    """Write a signature as "x_0 S0, like_0 any -> y_0 S0"."""
    parts = (
        ", ".join(f"{name} {signature.get(name, 'any')}" for name in side)
        for side in (view.inputs, view.outputs)
    )
    return " -> ".join(parts).strip()


def main(arguments: Sequence[str]) -> int:
    """Run the proof over the named op types (all by default), print it, return 1 for a fault."""
    report = run(seed=0, op_types=arguments or None)
    print(f"{'op type':40} cases  checked  wrong  found / valid")
    for op in report.ops:
        print(
            f"{op.op_type:40} {op.cases:5} {op.checked:8} {len(op.wrong):6} {op.found:6} / {op.valid}"
        )
    for line in report.wrong:
        print("wrong:", line)
    for line in report.missing:
        print("missing:", line)
    print(
        f"{len(report.ops)} op types, {report.checked} signatures run, {len(report.wrong)} wrong; "
        f"{report.completeness:.2%} of the right one-axis signatures listed"
    )
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
