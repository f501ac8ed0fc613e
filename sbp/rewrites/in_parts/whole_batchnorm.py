"""Layout of a program whose BatchNorms are in parts → that of the one in which each is one op again.

Code that differentiates by itself writes such an op: y has the state that it has in parts, and the batch
may be cut where the mean that it makes is the same on all devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autoddl.sbp.layout import Layout, Redistribution
from autoddl.sbp.program import Op, Program, Tensor
from autoddl.sbp.program.ops_and_tensors import UNREAD
from autoddl.sbp.rewrites.in_parts.sync_batchnorm import PREFIX, is_synchronised

_STATISTICS = "mean_0", "inv_variance_0"


def in_one_op(layout: Layout) -> Layout:
    """Return the layout of the program that `synchronised` was given; the same if it was given none."""
    return _Joining(layout).layout() if is_synchronised(layout.program) else layout


class _Joining:
    def __init__(self, parts: Layout) -> None:
        self.parts, self.before = parts, parts.program
        parted = [op for op in self.before.ops if op.name.startswith(PREFIX)]
        followers = (dict(op.inputs) for op in parted if op.type == "sgd_update")
        self.running = {inputs["model_diff_0"]: inputs["model_0"] for inputs in followers}
        forward = [op for op in self.before.ops if _reads_parts(op)]
        self.maker = {dict(op.inputs)["moving_mean_0"]: op.name for op in forward}
        self.renamed = {
            f"{op.name}/y_0": f"{op.name.removeprefix(f'{PREFIX}dx-')}/dx_0"
            for op in parted
            if op.name.startswith(f"{PREFIX}dx-")
        }

    def layout(self) -> Layout:
        """Return the layout of the program with one op for each BatchNorm."""
        parts = self.parts
        signatures, variables = dict(parts.signatures), dict(parts.variables)
        for op in self.before.ops:
            if _reads_parts(op):
                inputs, mine = dict(op.inputs), signatures[op.name]
                variables |= {
                    self.running[inputs[operand]]: mine[operand]
                    for operand in ("moving_mean_0", "moving_variance_0")
                    if inputs[operand] in self.running
                }
                made = dict.fromkeys(_STATISTICS, mine["moving_mean_0"])
                signatures[op.name] = {**mine, **made}
            elif UNREAD in op.attr and f"{PREFIX}dx-{op.name}" in signatures:
                dx = signatures[f"{PREFIX}dx-{op.name}"]["y_0"]
                signatures[op.name] = {**signatures[op.name], "dx_0": dx}
        after = {k: v for k, v in parts.after.items() if not _inside(k) and not _inside(v)}
        return Layout.of(
            self._program(), signatures, variables, parts.inputs, list(self._moves()), after
        )

    def _program(self) -> Program:
        ops = [self._op(op) for op in self.before.ops if not _inside(op.name)]
        tensors = [t for t in self.before.tensors if not _inside(t.name)]
        for op in ops:
            made = {name: tensor for name, tensor in op.outputs if name in _STATISTICS}
            if op.type == "normalization" and made:
                gamma = self.before.tensor[dict(op.inputs)["gamma_0"]]
                tensors += [
                    Tensor(t, gamma.shape, gamma.dtype, "activation") for t in made.values()
                ]
        return replace(self.before, ops=tuple(ops), tensors=tuple(tensors))

    def _op(self, op: Op) -> Op:
        inputs, attrs = {o: self.renamed.get(t, t) for o, t in op.inputs}, dict(op.attrs)
        if _reads_parts(op):
            for operand in ("moving_mean_0", "moving_variance_0"):
                running = self.running.get(inputs.pop(operand))
                if running is not None:
                    inputs[operand] = running
            made = {name: f"{op.name}/{name}" for name in (*_STATISTICS, "y_0")}
            return replace(
                op, inputs=tuple(sorted(inputs.items())), outputs=tuple(sorted(made.items())),
                attrs=tuple(sorted({**attrs, "training": True}.items())),
            )  # fmt: skip
        if UNREAD in attrs:
            del attrs[UNREAD]
            maker = self.maker[inputs["mean_0"]]
            inputs |= {operand: f"{maker}/{operand}" for operand in _STATISTICS}
        return replace(op, inputs=tuple(inputs.items()), attrs=tuple(attrs.items()))

    def _moves(self) -> Iterator[Redistribution]:
        for item in self.parts.redistributions:
            readers = tuple(reader for reader in item.readers if not _inside(reader[0]))
            tensor = self.renamed.get(item.tensor, item.tensor)
            if readers and not _inside(tensor):
                yield replace(item, tensor=tensor, readers=readers)


def _inside(name: str) -> bool:
    return name.startswith(PREFIX)


def _reads_parts(op: Op) -> bool:
    """Tell whether an op is the last of those that stand for the forward pass of a BatchNorm."""
    return (
        op.type == "normalization"
        and not _inside(op.name)
        and _inside(dict(op.inputs).get("moving_mean_0", ""))
    )
