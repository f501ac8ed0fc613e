"""What OneFlow makes of the rules: its own lists beside ours, for every case of every op type.

A label of ours is refused where the signature cuts evenly and the engine does not list it. The table
`autoddl/engine/oneflow/model/refused.json` holds the refused labels; the planner leaves them out. Labels
that end in a dim number stand for that number only where some number of theirs is accepted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from importlib.metadata import version
from typing import Any

import numpy as np

import autoddl
from autoddl.engine.oneflow.model.engine_model import ONEFLOW
from autoddl.engine.oneflow.signatures.signature_list import Query, SignatureList, signature_lists
from autoddl.sbp.rules import registry
from autoddl.sbp.rules.batchnorm import LOCAL_STATISTICS
from autoddl.sbp.rules.registry import OpView, Signature
from autoddl.sbp.shards import local_shape
from autoddl.sbp.state import NdSbp
from experiments.models import build
from experiments.rule_cases import CASES

RANKS = (2, 4)
APPROXIMATIONS = frozenset({LOCAL_STATISTICS})
MAX_NDIM = 8  # dims that labels are written for, where an engine refuses all numbers of a label
_DTYPES = {"i": "int64", "u": "int64", "b": "bool"}


@dataclass(frozen=True)
class Instance:
    """One case on one number of ranks: labels of ours and signatures that only the engine lists.

    Only signatures that cut every operand evenly count; `reason` says why there is no list.
    """

    op_type: str
    case: str
    ranks: int
    accepted: tuple[str, ...]
    refused: tuple[str, ...]
    engine_only: tuple[str, ...]
    reason: str = ""


@dataclass(frozen=True)
class TypeReport:
    """The instances of an op type together; labels in `disputed` are refused only in some."""

    op_type: str
    instances: tuple[Instance, ...]

    @cached_property
    def accepted(self) -> tuple[str, ...]:
        """Return the labels that some instance accepts."""
        return _sorted(i.accepted for i in self.instances)

    @cached_property
    def refused(self) -> tuple[str, ...]:
        """Return the labels that some instance refuses."""
        return _sorted(i.refused for i in self.instances)

    @cached_property
    def disputed(self) -> tuple[str, ...]:
        """Return the labels that one instance accepts and another refuses."""
        return tuple(label for label in self.refused if label in self.accepted)

    @cached_property
    def engine_only(self) -> tuple[str, ...]:
        """Return signatures that the engine lists and the rule lacks."""
        return _sorted(i.engine_only for i in self.instances)

    @property
    def listed(self) -> bool:
        """Tell whether the engine has a list for any instance."""
        return not all(i.reason for i in self.instances)

    @cached_property
    def reasons(self) -> tuple[str, ...]:
        """Return why the engine gave no list for some instances."""
        return _sorted([i.reason] for i in self.instances if i.reason)


@dataclass(frozen=True)
class EngineReport:
    """All op types that were asked about, and the refusals that the planner's table holds."""

    engine: str
    types: tuple[TypeReport, ...]
    table: Mapping[str, frozenset[str]]

    columns = ("op type", "cases", "ours", "common", "refused", "engine only", "remarks")

    @cached_property
    def refused(self) -> dict[str, tuple[str, ...]]:
        """Return the refused labels by op type, as the table holds them."""
        return {t.op_type: _table_labels(t) for t in self.types if t.refused}

    @property
    def faults(self) -> tuple[str, ...]:
        """Say where the table does not say what the engine does."""
        found = []
        for report in self.types:
            if not report.listed:
                continue
            held = self.table.get(report.op_type, frozenset())
            due = frozenset(self.refused.get(report.op_type, ()))
            wrongly = held & (set(report.accepted) - set(report.refused))
            if due - held or wrongly:
                found.append(
                    f"{report.op_type}: the table lacks {sorted(due - held)} and wrongly refuses "
                    f"{sorted(wrongly)}; write it anew with --write"
                )
        return tuple(found)

    @cached_property
    def planned(self) -> tuple[int, int]:
        """Return how many of the asked signatures plans can use, and how many of those it accepts."""
        planned = accepted = 0
        for t in self.types:
            masked = self.table.get(t.op_type, frozenset())
            for i in t.instances:
                accepted += len(i.accepted)
                planned += len(i.accepted)
                planned += sum(not registry.is_refused(label, masked) for label in i.refused)
        return planned, accepted

    def rows(self) -> Iterable[tuple[str, ...]]:
        """Return one row per op type."""
        for t in self.types:
            labels = {*t.accepted, *t.refused}
            remarks = [f"no list: {reason}" for reason in t.reasons]
            if t.disputed:
                remarks.append("accepted elsewhere: " + ", ".join(t.disputed))
            counts = len(t.instances) // len(RANKS), len(labels), len(t.accepted)
            listed = ", ".join(t.refused), ", ".join(t.engine_only), "; ".join(remarks)
            yield (t.op_type, *map(str, counts), *listed)

    def summary(self) -> str:
        """Sum up in one line."""
        refused = sum(len(t.refused) for t in self.types)
        common = sum(len(set(t.accepted) - set(t.refused)) for t in self.types)
        disputed = sum(len(t.disputed) for t in self.types)
        only = sum(len(t.engine_only) for t in self.types)
        silent = sum(not t.listed for t in self.types)
        planned, accepted = self.planned
        return (
            f"{len(self.types)} op types, {self.engine}: {common} labels accepted, {refused} refused "
            f"({disputed} of them only in some cases), {only} signatures only in its lists, "
            f"{silent} op types for which it has no list; of {planned:,} signatures that plans can use "
            f"here it accepts {accepted:,} ({accepted / max(1, planned):.2%})"
        )

    def to_json(self) -> dict[str, Any]:
        """Return everything that was seen, as plain JSON values."""
        instances = [asdict(i) for t in self.types for i in t.instances]
        return {"engine": self.engine, "refused": self.refused, "instances": instances}


def run(
    *,
    seed: int = 0,
    op_types: Collection[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    models: Collection[str] = (),
) -> EngineReport:
    """Compare the rules with the engine's lists, over all cases on 2 and 4 ranks.

    `seed` draws the operands from which their dtypes are read; `op_types` None stands for all;
    `progress` gets (answered, all). The ops of `models` of the zoo (at toy
    sizes) are asked about, too.
    """
    known = {rule.op_type for rule in registry.all_rules()}
    wanted = known if op_types is None else known & set(op_types)
    pairs = [(view, _dtypes(view, np.random.default_rng(seed))) for view in CASES]
    pairs += [pair for name in models for pair in _model_ops(name)]
    asked = {
        Query.of(view, dtypes, ranks): view
        for view, dtypes in pairs
        if view.type in wanted
        for ranks in RANKS
    }
    answers = signature_lists(tuple(asked), progress=progress)
    found: dict[str, list[Instance]] = {name: [] for name in sorted({q.type for q in asked})}
    for (query, view), answer in zip(asked.items(), answers, strict=True):
        found[query.type].append(compare(view, query.ranks, answer))
    types = tuple(TypeReport(name, tuple(instances)) for name, instances in found.items())
    return EngineReport(f"oneflow {version('oneflow')}", types, ONEFLOW.limits.refused)


def compare(view: OpView, ranks: int, answer: SignatureList) -> Instance:
    """Compare the engine's list of one op with the rule's signatures."""
    made = partial(Instance, view.type, _name(view), ranks)
    found = registry.labelled(view, allow=APPROXIMATIONS)
    ours = {k: s for k, s in found.items() if _is_even(view, s, ranks)}
    if not view.inputs:  # OneFlow takes their state from an attribute, which says B by default
        rest = tuple(label for label in ours if label != registry.BROADCAST)
        return made((registry.BROADCAST,), rest, ())
    if answer.signatures is None:
        return made((), (), (), answer.reason)
    listed = {_text(view, s) for s in answer.signatures if _is_even(view, s, ranks)}
    texts = {label: _text(view, signature) for label, signature in ours.items()}
    accepted = tuple(label for label, text in texts.items() if text in listed)
    refused = tuple(label for label, text in texts.items() if text not in listed)
    return made(accepted, refused, tuple(sorted(listed - set(texts.values()))))


def written(report: EngineReport) -> str:
    """Return the table's text: what the report says of its op types, and the rest as it was.

    Op types for which the engine has no list keep what was written by hand.
    """
    asked = {t.op_type for t in report.types if t.listed}
    known = {rule.op_type for rule in registry.all_rules()}
    kept = {name: sorted(labels) for name, labels in report.table.items() if name not in asked}
    rows = {name: labels for name, labels in (kept | report.refused).items() if name in known}
    lines = [f"    {json.dumps(name)}: {json.dumps(sorted(rows[name]))}" for name in sorted(rows)]
    body = "{\n" + ",\n".join(lines) + "\n  }" if lines else "{}"
    return f'{{\n  "engine": {json.dumps(report.engine)},\n  "refused": {body}\n}}\n'


def _model_ops(name: str) -> Iterator[tuple[OpView, dict[str, str]]]:
    """Yield the ops of a model's training step with the dtypes of their inputs."""
    graph, inputs = build(name)
    program = autoddl.capture(graph, *inputs)
    for op in program.ops:
        dtypes = {operand: program.tensor[tensor].dtype for operand, tensor in op.inputs}
        yield OpView.of(op, program.shapes(op)), dtypes


def _dtypes(view: OpView, rng: np.random.Generator) -> dict[str, str]:
    """Return the dtype name of every input: that of its test values, float32 for real numbers."""
    rule = registry.find(view.type)
    samplers = rule.samplers if rule else {}
    return {
        name: _DTYPES.get(samplers[name](view, name, rng).dtype.kind, "float32")
        if name in samplers
        else "float32"
        for name in view.inputs
    }


def _is_even(view: OpView, signature: Signature, ranks: int) -> bool:
    return all(local_shape(view.shape[n], (s,), (ranks,)) is not None for n, s in signature.items())


def _text(view: OpView, signature: Signature) -> str:
    """Return a signature as "S0 B -> P"."""
    sides = (view.inputs, view.outputs)
    return " -> ".join(
        " ".join(str(*NdSbp((signature[name],)).executed) for name in side) for side in sides
    ).strip()


def _name(view: OpView) -> str:
    shapes = (f"{name}: {' '.join(map(str, view.shape[name]))}".strip() for name in view.inputs)
    return ", ".join(shapes)


def _table_labels(report: TypeReport) -> tuple[str, ...]:
    """Return the refused labels without those that another one implies, for dims of any number."""
    found = set()
    for label in report.refused:
        if " + " in label and any(part in report.refused for part in label.split(" + ")):
            continue
        stem = label.rstrip("0123456789")
        numbered = label.startswith("cut ") and stem != label and " + " not in label
        if numbered and not any(_is_numbered(other, stem) for other in report.accepted):
            found |= {f"{stem}{dim}" for dim in range(MAX_NDIM)}
        else:
            found.add(label)
    return tuple(sorted(found))


def _is_numbered(label: str, stem: str) -> bool:
    return label.startswith(stem) and label[len(stem) :].isdigit()


def _sorted(groups: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(sorted({entry for group in groups for entry in group}))
