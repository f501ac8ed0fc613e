"""Edit a job: states of variables and ops, and identity ops for the steps of redistributions.

Names R1–R4 below are the rules under which OneFlow 0.9 executes any plan exactly:
R1 a variable is read through an identity op in its own state, R2 every step changes one mesh axis,
R3 shards are even (the planner knows no others), R4 old signature entries are cleared, and on
one-axis meshes the legacy map gets the same value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from autoddl.engine.oneflow.capture import op_names
from autoddl.engine.oneflow.capture.data_ops import data_ops
from autoddl.engine.oneflow.capture.op_names import neutral_name
from autoddl.engine.oneflow.capture.reader import read_sbp
from autoddl.engine.oneflow.job import accumulation
from autoddl.errors import AutoDDLError
from autoddl.plan.value import PlanValue
from autoddl.sbp.layout import OUTPUT, Reader, Redistribution
from autoddl.sbp.program.ops_and_tensors import READ
from autoddl.sbp.state import NdSbp, Sbp, broadcast

Ports = Mapping[str, Sequence[str]]
"""The blobs of an op's ports, in order."""
NO_PORTS: Ports = {}


def read_state(message: Any) -> NdSbp:
    """Return the state that an NdSbp message of the engine holds."""
    return NdSbp(map(read_sbp, message.sbp_parallel))


def write_signature(job: Any, name: str, signature: Mapping[str, NdSbp]) -> None:
    """Replace what a job says of the states of an op's operands."""
    view = job.job_parallel_view_conf
    conf = view.op_name2nd_sbp_signature_conf[name]
    conf.Clear()
    if name in view.op_name2sbp_signature_conf:
        del view.op_name2sbp_signature_conf[name]
    for operand, state in signature.items():
        message = conf.bn_in_op2nd_sbp[operand]
        _set_state(message, state)
        if len(state) == 1:
            legacy = view.op_name2sbp_signature_conf[name].bn_in_op2sbp_parallel[operand]
            legacy.CopyFrom(message.sbp_parallel[0])


def write_input(job: Any, op: Any, state: NdSbp) -> None:
    """Set the state of one of the graph's inputs (the tracer does so for global tensors)."""
    _set_state(op.input_conf.blob_conf.nd_sbp, state)
    write_signature(job, op.name, {"out": state})


def write_output(job: Any, op: Any, state: NdSbp) -> None:
    _set_state(op.output_conf.blob_conf.nd_sbp, state)
    write_signature(job, op.name, {"in": state, "out": state})


_GRADIENT = "model_diff_0"  # an update's operand


class JobWriter:
    """Edit one job proto; looks ops up by name and keeps what it adds findable.

    `behind` are the updates' operands that get a gradient through what clips it or adds decay to it: to
    read a gradient there means to read it at the head of that chain.
    """

    def __init__(self, job: Any, graph_name: str) -> None:
        self.job, self.graph_name, self.descs = job, graph_name, job.helper.lbn2logical_blob_desc
        self.ops = {op.name: op for op in job.net.op}
        self.lbn = {
            neutral_name(op.name, graph_name): f"{op.name}/out"
            for op in job.net.op
            if op.WhichOneof("op_type") in ("input_conf", "variable_conf")
        }
        self.group = {
            name: group for group in job.placement.placement_group for name in group.op_set.op_name
        }
        self.behind: dict[Reader, Reader] = {}
        for op in job.net.op:
            if "model_diff" in op.user_conf.input:
                chain = [] if op_names.gradient_port(op) else self.chain_before(op.name)
                if chain:
                    head = chain[-1]
                    reader = head.name, f"{op_names.gradient_port(head)}_0"
                    self.behind[op.name, _GRADIENT] = reader

    def chain_before(self, update: str) -> list[Any]:
        """Return the ops that clip or decay the gradient of an update, the last one first."""
        found = list[Any]()
        op, port = self.ops[update], "model_diff"
        while port:
            op = self.ops[op.user_conf.input[port].s[0].split("/")[0]]
            port = op_names.gradient_port(op)
            found += [op] if port else []
        return found

    def set_variable(self, name: str, state: NdSbp) -> None:
        conf = self._op(name).variable_conf
        del conf.nd_sbp[:]
        conf.nd_sbp.extend(f"S({sbp.dim})" if sbp.is_split else sbp.kind for sbp in state)
        write_signature(self.job, name, {"out": state})

    def set_signature(self, name: str, signature: Mapping[str, NdSbp]) -> None:
        self._op(name)
        write_signature(self.job, name, signature)

    def set_inserted(self, plan: PlanValue) -> None:
        """Give inputs, outputs and the ops of gradient accumulation their states."""
        held = {item.name: item.state for item in plan.inputs} | dict(plan.variables)
        for op in self.job.net.op:
            if op.WhichOneof("op_type") == "input_conf":
                write_input(self.job, op, held[neutral_name(op.name, self.graph_name)])
            elif op.WhichOneof("op_type") == "output_conf":
                axes = len(self.group[op.name].parallel_conf.hierarchy.dim)
                write_output(self.job, op, broadcast(axes))
        made = {self.lbn[name]: state for name, state in held.items() if name in self.lbn}
        for name, signature in plan.signatures.items():
            made |= {f"{name}/{operand}": state for operand, state in signature.items()}
        for op in self.job.net.op:
            if accumulation.is_inserted(op) and accumulation.source(op) in made:
                state = made[accumulation.source(op)]
                made[f"{op.name}/out_0"] = state
                write_signature(self.job, op.name, {"in_0": state, "out_0": state})

    def source(self, lbn: str) -> str:
        """Return the blob that the ops of gradient accumulation hand on as `lbn`."""
        while accumulation.is_inserted(self.ops[lbn.split("/")[0]]):
            lbn = accumulation.source(self.ops[lbn.split("/")[0]])
        return lbn

    def reads(self, tensor: str, reader: Reader) -> list[str]:
        """Return the blobs in which a reader gets a tensor: one, but of outputs any number."""
        op_name, operand = reader
        if op_name == OUTPUT:
            goal = self.lbn.get(tensor, tensor)
            read = [
                getattr(op.output_conf, "in")
                for op in self.job.net.op
                if op.WhichOneof("op_type") == "output_conf"
            ]
            return [lbn for lbn in dict.fromkeys(read) if self.source(lbn) == goal]
        op_name, operand = self.behind.get(reader, reader)
        port, _, position = operand.rpartition("_")
        return [self._op(op_name).user_conf.input[port].s[int(position)]]

    def rewire(self, reader: Reader, old: str, new: str) -> None:
        """Let a reader that reads the blob `old` read `new`; with an update all else behind gradients."""
        op_name, operand = self.behind.get(reader, reader)
        if op_name != OUTPUT:
            port, _, position = operand.rpartition("_")
            self._op(op_name).user_conf.input[port].s[int(position)] = new
            if reader[1] == _GRADIENT:
                for blobs, place in self._of_all_gradients.pop(old, ()):
                    blobs[place] = new
                    self._of_all_gradients.setdefault(new, []).append((blobs, place))
            return
        for op in self.job.net.op:
            if op.WhichOneof("op_type") == "output_conf" and getattr(op.output_conf, "in") == old:
                setattr(op.output_conf, "in", new)

    @cached_property
    def _of_all_gradients(self) -> dict[str, list[tuple[Any, int]]]:
        """Return by blob where an operand of what reads all gradients is it."""
        found = dict[str, list[tuple[Any, int]]]()
        for op in self.job.net.op:
            if op.user_conf.op_type_name.startswith("multi_"):
                for blobs in op.user_conf.input.values():
                    for place, lbn in enumerate(blobs.s):
                        found.setdefault(lbn, []).append((blobs.s, place))
        return found

    def read(self, name: str, number: int, state: NdSbp, group: Any, device: str) -> None:
        """Hand an input that the graph reads itself on to all ops, on some devices in a state."""
        lbn = name.removeprefix(READ)
        made = self.identity(f"autoddl-read-{number}", lbn, state, group=group)
        self.ops[made.partition("/")[0]].device_tag = device
        own = data_ops(self.job)
        for op in self.job.net.op:
            kind = op.WhichOneof("op_type")
            if kind == "output_conf" and getattr(op.output_conf, "in") == lbn:
                setattr(op.output_conf, "in", made)
            elif kind == "user_conf" and op.name not in own and f"{op.name}/out_0" != made:
                for port in op.user_conf.input.values():
                    port.s[:] = [made if each == lbn else each for each in port.s]
        self.lbn[name] = made

    def move(self, name: str, group: Any) -> None:
        if self.group[name] is not group:
            self.group[name].op_set.op_name.remove(name)
            group.op_set.op_name.append(name)
            self.group[name] = group

    def redistribute(
        self, redistribution: Redistribution, number: int, own: NdSbp | None
    ) -> tuple[str, str]:
        """Chain one identity per step behind a tensor and let its readers read the last one.

        The first one is in the tensor's `own` state, if that is given. Returns the first and the last.
        """
        steps = redistribution.path if own is None else (own, *redistribution.path)
        shift = 0 if own is None or not redistribution.early else 1
        done: dict[str, str] = {}
        for reader in redistribution.readers:
            for lbn in self.reads(redistribution.tensor, reader):
                if lbn not in done:
                    name = f"autoddl-boxing-{number}" + (f"-{len(done)}" if done else "")
                    done[lbn] = self.chain(name, lbn, steps)
                    if redistribution.after:
                        self.wait(f"{name}-{redistribution.early + shift}", redistribution.after)
                self.rewire(reader, lbn, done[lbn])
        return f"autoddl-boxing-{number}-0", next(iter(done.values()), "").split("/")[0]

    def wait(self, name: str, before: str) -> None:
        """Let an op run when another one has run, whether or not it reads its results."""
        self._op(name).ctrl_in_op_name.append(self._op(before).name)

    def chain(self, name: str, lbn: str, steps: Iterable[NdSbp]) -> str:
        """Return the last of a chain of identities behind a blob, one for each state."""
        for index, state in enumerate(steps):
            lbn = self.identity(f"{name}-{index}", lbn, state)
        return lbn

    def identity(
        self, name: str, lbn: str, state: NdSbp, *, group: Any = None, buffer_size: int = 0
    ) -> str:
        """Add an op that hands a blob on in a state, on the devices of `group` or of its producer.

        With a `buffer_size` it keeps so many micro-batches.
        """
        producer = self.ops[lbn.split("/")[0]]
        where = group or self.group[producer.name]
        axes = len(where.parallel_conf.hierarchy.dim)
        assert len(state) == max(axes, 1), f"{name}: {state} on {axes} axes"  # CUDA jobs would fail
        made, kind = f"{name}/out_0", "identity_buffer" if buffer_size else "identity"
        op = self.add(name, kind, producer, {"in": [lbn]}, {"out": [made]}, group=where)
        if buffer_size:
            op.user_conf.attr["buffer_size"].at_int64 = buffer_size
        self.descs[made].CopyFrom(self.descs[lbn])
        write_signature(self.job, name, {"in_0": state, "out_0": state})
        return made

    def add(
        self, name: str, kind: str, like: Any, inputs: Ports = NO_PORTS, outputs: Ports = NO_PORTS, *,
        group: Any = None,
    ) -> Any:  # fmt: skip
        """Add an op that reads and makes blobs, in the scope of `like`, on its devices or a group's."""
        op = self.job.net.op.add()
        op.name, op.device_tag, op.scope_symbol_id = name, like.device_tag, like.scope_symbol_id
        conf = op.user_conf
        conf.op_type_name = kind
        for port, blobs in inputs.items():
            conf.input[port].s.extend(blobs)
        for port, blobs in outputs.items():
            conf.output[port].s.extend(blobs)
        conf.input_order.extend(inputs)
        conf.output_order.extend(outputs)
        self._added(op, group or self.group[like.name])
        return op

    def copy(self, original: Any, name: str) -> Any:
        """Add a copy of an op, whose results have its own name."""
        op = self.job.net.op.add()
        op.CopyFrom(original)
        op.name = name
        for port in op.user_conf.output.values():
            for place, lbn in enumerate(port.s):
                port.s[place] = f"{name}/{lbn.partition('/')[2]}"
                self.descs[port.s[place]].CopyFrom(self.descs[lbn])
        self._added(op, self.group[original.name])
        return op

    def _added(self, op: Any, group: Any) -> None:
        """Keep track of an op that was added, and put it on the devices of a group."""
        self.ops[op.name], self.group[op.name] = op, group
        group.op_set.op_name.append(op.name)
        self.job.job_parallel_view_conf.op_name2is_local_parallel_view[op.name] = False

    def remove(self, name: str) -> None:
        """Take an op out of the job, which nothing reads any more."""
        self.job.net.op.remove(self.ops.pop(name))
        self.group.pop(name).op_set.op_name.remove(name)

    def copy_signature(self, name: str, other: str) -> None:
        """Give the op `other` the states of an op's operands."""
        table = self.job.job_parallel_view_conf.op_name2nd_sbp_signature_conf
        known = table[name].bn_in_op2nd_sbp
        write_signature(self.job, other, {key: read_state(known[key]) for key in known})

    def state(self, lbn: str) -> NdSbp:
        """Return the state in which a blob is made."""
        name, _, blob = lbn.partition("/")
        table = self.job.job_parallel_view_conf.op_name2nd_sbp_signature_conf
        return read_state(table[name].bn_in_op2nd_sbp[blob])

    def _op(self, name: str) -> Any:
        if name not in self.ops:
            raise AutoDDLError(
                f"plan: op {name} is not in this graph; plan again with autoddl.optimize"
            )
        return self.ops[name]


def _set_state(message: Any, state: Iterable[Sbp]) -> None:
    message.Clear()
    for sbp in state:
        entry = message.sbp_parallel.add()
        if sbp.is_split:
            entry.split_parallel.axis = sbp.dim
        elif sbp.kind == "B":
            entry.broadcast_parallel.SetInParent()
        else:
            entry.partial_sum_parallel.SetInParent()
