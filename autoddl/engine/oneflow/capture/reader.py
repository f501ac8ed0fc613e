"""nn.Graph → Program: trace the graph and read its complete job (forward, backward, optimizer)."""

from __future__ import annotations

import inspect
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from typing import Any

import oneflow as flow
from oneflow.core.common import data_type_pb2

from autoddl.engine.oneflow.capture import abstract, op_names
from autoddl.engine.oneflow.capture.constants import constants_of, digests_of, end_trace
from autoddl.engine.oneflow.capture.data_ops import data_ops, data_tensors
from autoddl.engine.oneflow.capture.op_names import neutral_name
from autoddl.engine.oneflow.capture.optimizer_reader import groups_of
from autoddl.engine.oneflow.capture.shadow import device_type, kept_gradients, shadow, variables
from autoddl.engine.oneflow.reason import reason
from autoddl.errors import AutoDDLError
from autoddl.sbp.program import Op, Parameter, Program, Tensor, freeze
from autoddl.sbp.program.ops_and_tensors import Interner
from autoddl.sbp.state import Sbp

SYSTEM_PREFIX = "System-"
_ATTRIBUTE_SKIP = frozenset({"cudnn_conv_algo"})


def capture(graph: flow.nn.Graph, *inputs: Any, **kwargs: Any) -> Program:
    """Return the Program of a single-device training graph; graph and model stay as they were.

    Without inputs the graph must have been built (or run) before, and its own job is read, or `build`
    takes none. Inputs are what the graph is called with: tensors of the whole logical batch.

    Raises:
        AutoDDLError: not an nn.Graph; not built and no inputs given; the engine can't trace it.
    """
    if not isinstance(graph, flow.nn.Graph):
        raise AutoDDLError(
            f"capture: got {type(graph).__name__}; give an oneflow.nn.Graph with its optimizer added"
        )
    if not inputs and not kwargs and graph._full_job_proto is None and _parameters(graph):
        raise AutoDDLError(
            f"graph {graph.name}: not built and no inputs given; pass example inputs "
            "(autoddl.optimize(graph, x, y, …)) or call graph.build_graph(x, y) first"
        )
    if not inputs and not kwargs and graph._full_job_proto is not None:
        if accumulation_steps(graph) > 1:
            raise AutoDDLError(
                f"graph {graph.name}: built to accumulate gradients; pass example inputs "
                "(autoddl.optimize(graph, x, y, …)), so that it is traced as the whole batch"
            )
        return _with_constants(graph)
    if graph._is_compiled and flow.env.get_world_size() > 1:
        raise AutoDDLError(
            f"graph {graph.name}: it has run on each rank alone, with which OneFlow can't go on in a job "
            f"of {flow.env.get_world_size()} ranks, nor end it well; plan a graph that has not run"
        )
    held = [tensor for tensor in variables(graph) if tensor.is_global]
    if held:
        twin = traced_alone(graph, (inputs, kwargs), device_type(held[0]))
    else:
        with _accumulating(graph, 1):  # over micro-batches, which are the plan's
            twin = traced(graph, *inputs, **kwargs)
    return _with_constants(twin)


def _parameters(graph: flow.nn.Graph) -> Collection[str]:
    return inspect.signature(graph.build).parameters.keys()


def _with_constants(graph: flow.nn.Graph) -> Program:
    """Return the Program of a built graph, with the digests of its constants."""
    program = program_of(graph._full_job_proto, graph.name)
    return replace(program, constants=digests_of(constants_of(graph)))


def traced_alone(
    graph: flow.nn.Graph, call: tuple[Any, Any], device: str, *, micro_batches: int = 1
) -> flow.nn.Graph:
    """Return a built copy of a graph, traced as on one device wherever its variables and inputs are.

    With several micro-batches, whose inputs the call has one behind the other, it sums up gradients, and
    has no mixed precision (job/precision_writer.py adds that).
    """
    args, kwargs = abstract.stand_ins(call, device)
    with _accumulating(graph, micro_batches), abstract.without_values(graph, device):
        if micro_batches > 1:
            graph.config.proto.enable_auto_mixed_precision = False
        return traced(graph, *args, **kwargs)


def traced(graph: flow.nn.Graph, *inputs: Any, **kwargs: Any) -> flow.nn.Graph:
    """Return a built (not compiled) copy of `graph`; what is printed meanwhile goes to stderr."""
    twin = shadow(graph)
    try:
        with (
            kept_gradients(graph),
            abstract.unmaterialised_states(graph),
            redirect_stdout(sys.stderr),
        ):
            twin.build_graph(*inputs, **kwargs)
    except AutoDDLError:
        end_trace(twin)
        raise
    except Exception as error:
        end_trace(twin)
        raise AutoDDLError(
            f"graph {graph.name}: OneFlow can't trace it on these inputs: {reason(error)}"
        ) from error
    op_names.neutralise(twin._full_job_proto)
    return twin


def accumulation_steps(graph: flow.nn.Graph) -> int:
    """Return over how many micro-batches a user's graph sums up gradients."""
    proto = graph.config.proto
    field = "num_gradient_accumulation_steps"
    return int(getattr(proto, field)) if proto.HasField(field) else 1


@contextmanager
def _accumulating(graph: flow.nn.Graph, count: int) -> Iterator[None]:
    """Let copies of a graph sum up the gradients of so many micro-batches.

    OneFlow's own method for that also changes how all graphs of the process are compiled.
    """
    proto = graph.config.proto
    kept = type(proto)()
    kept.CopyFrom(proto)
    if count != accumulation_steps(graph):
        proto.num_gradient_accumulation_steps = count
    try:
        yield
    finally:
        proto.CopyFrom(kept)


def program_of(job: Any, graph_name: str) -> Program:
    """Return the Program of a full job proto; names that contain the graph's own are made neutral."""
    return _JobReader(op_names.neutral(job), graph_name).program()


class _JobReader:
    """Turn one job proto into the parts of a Program."""

    def __init__(self, job: Any, graph_name: str) -> None:
        self.job = job
        self.graph_name = graph_name
        self.descs = job.helper.lbn2logical_blob_desc
        train = job.job_conf.train_conf
        self.loss = train.loss_lbn[0] if job.job_conf.HasField("train_conf") else None
        self.trained = {v for conf in train.optimizer_conf for v in conf.variable_op_names}
        self.module_of = {
            op: "" if name == graph_name else name
            for name, conf in job.module_name2module_conf.items()
            for op in conf.ops
        }
        kinds = [(op, op.WhichOneof("op_type")) for op in job.net.op]
        found = data_ops(job)
        self.read = data_tensors(job, found)
        self.user_ops = _planned(
            [op for op, kind in kinds if kind == "user_conf" and op.name not in found]
        )
        self.variables = [
            op.name
            for op, kind in kinds
            if kind == "variable_conf" and not op.name.startswith(SYSTEM_PREFIX)
        ]
        self.input_ops = [op for op, kind in kinds if kind == "input_conf"]
        self.output_ops = [op for op, kind in kinds if kind == "output_conf"]
        given = {f"{op.name}/out": neutral_name(op.name, graph_name) for op in self.input_ops}
        self.inputs = given | self.read
        self.rename = self.inputs | {f"{name}/out": name for name in self.variables}
        self.counted: Counter[str] = Counter()
        # An update reads the gradient itself, whatever clips it or adds decay to it on the way.
        self.read_through = {
            f"{op.name}/{blob}_0": op.user_conf.input[port].s[0]
            for op, kind in kinds
            if kind == "user_conf"
            for port in [op_names.gradient_port(op)]
            if port
            for blob in op.user_conf.output
        }
        self.once = Interner()

    def program(self) -> Program:
        ops = [self._op(op) for op in self.user_ops]
        updates = {
            dict(op.inputs)["model_0"]: op
            for op in ops
            if op.is_update and "model_diff_0" in dict(op.inputs)
        }
        outputs = tuple(self._tensor_name(getattr(op.output_conf, "in")) for op in self.output_ops)
        loss = self._tensor_name(self.loss) if self.loss else None
        forward = _ancestors(ops, {*outputs, *([loss] if loss else [])})
        ops = [self._with_phase(op, forward) for op in ops]
        parameters: list[Parameter] = []
        states: set[str] = set()
        for name in self.variables:
            if name in updates:
                parameters.append(_parameter(name, updates[name], set(self.variables)))
                states.update(parameters[-1].states)
        parameters += [
            Parameter(name) for name in self.variables if name not in updates and name not in states
        ]
        # What OneFlow adds in no order comes where it is read.
        ordered = _topological(sorted(ops, key=lambda op: op_names.is_added_by_a_pass(op.name)))
        return Program(
            ops=tuple(ordered),
            tensors=tuple(self._tensors(ordered, parameters, states, loss)),
            inputs=tuple(self.inputs.values()),
            outputs=outputs,
            parameters=tuple(parameters),
            loss=loss,
            device=_device(self.user_ops),
            groups=groups_of(self.job, {p.tensor for p in parameters if p.update is not None}),
        )

    def _op(self, op: Any) -> Op:
        conf = op.user_conf
        attrs = {k: _attribute(v) for k, v in conf.attr.items() if k not in _ATTRIBUTE_SKIP}
        return Op(
            name=op.name,
            type=conf.op_type_name,
            inputs=tuple(self._operands(conf.input)),
            outputs=tuple(self._operands(conf.output)),
            attrs=self.once(tuple(sorted(attrs.items()))),
            module=self.module_of.get(op.name, ""),
        )

    def _operands(self, ports: Any) -> Iterator[tuple[str, str]]:
        for port in sorted(ports):
            for index, lbn in enumerate(ports[port].s):
                yield f"{port}_{index}", self._tensor_name(lbn)

    def _tensor_name(self, lbn: str) -> str:
        while lbn in self.read_through:
            lbn = self.read_through[lbn]
        if lbn.startswith(SYSTEM_PREFIX) and lbn not in self.rename:
            self.rename[lbn] = self._neutral_system_name(lbn)
        return self.rename.get(lbn, lbn)

    def _neutral_system_name(self, lbn: str) -> str:
        """Return the name of what the engine's scheduler makes, the same in all traces of a graph.

        Its numbers go on from trace to trace: the scheduler's own is left out, others are counted from 0
        in the order in which they are read. What scales the loss is named after the graph.
        """
        named, slash, rest = lbn.replace(f"-{self.graph_name}-", "-").partition("/")
        name, number = re.split(r"([-_]\d+)?$", named, maxsplit=1)[:2]
        if number is None or number[0] == "_":
            return f"{name}{slash}{rest}"
        self.counted[name] += 1
        return f"{name}-{self.counted[name] - 1}{slash}{rest}"

    def _with_phase(self, op: Op, forward: set[str]) -> Op:
        phase = "forward" if op.name in forward else "backward"
        return replace(op, phase="optimizer" if op.is_update else phase)

    def _tensors(
        self, ops: list[Op], parameters: list[Parameter], states: set[str], loss: str | None
    ) -> Iterator[Tensor]:
        lbn_of = {name: lbn for lbn, name in self.rename.items()}
        roles = {p.tensor: "parameter" if p.update else "buffer" for p in parameters}
        roles |= dict.fromkeys(sorted(states), "state")  # the same in each process
        roles |= dict.fromkeys(self.inputs.values(), "input")
        made = {"forward": "activation", "backward": "gradient", "optimizer": "system"}
        for op in ops:
            roles |= {name: made[op.phase] for _, name in op.outputs}
        if loss:
            roles[loss] = "loss"
        for op in ops:
            for _, name in op.inputs:
                roles.setdefault(name, "system")
        for name, role in roles.items():
            desc = self.descs[lbn_of.get(name, name)]
            yield Tensor(name, tuple(desc.shape.dim), _dtype(desc.data_type), role)


def _planned(ops: list[Any]) -> list[Any]:
    """Leave out the engine's own scheduler: ops that read nothing but the train step.

    They run on one device (learning rate, Adam's bias correction) and reach the updates as broadcast.
    """
    system: set[str] = set()
    for op in ops:
        sources = [lbn.split("/")[0] for port in op.user_conf.input.values() for lbn in port.s]
        scheduled = sources and all(s in system or s.startswith(SYSTEM_PREFIX) for s in sources)
        if scheduled or (op.name.startswith(SYSTEM_PREFIX) and not op_names.is_sparse_update(op)):
            system.add(op.name)
    return [op for op in ops if op.name not in system]


def _parameter(name: str, update: Op, variables: set[str]) -> Parameter:
    operands = dict(update.inputs)
    states = tuple(t for t in operands.values() if t in variables and t != name)
    return Parameter(name, operands["model_diff_0"], states, update.name)


def _ancestors(ops: list[Op], targets: set[str]) -> set[str]:
    """Return the names of the ops on which the target tensors depend (the forward pass)."""
    producer = {name: op for op in ops for _, name in op.outputs}
    found: set[str] = set()
    stack = [producer[t] for t in targets if t in producer]
    while stack:
        op = stack.pop()
        if op.name not in found:
            found.add(op.name)
            stack += [producer[t] for _, t in op.inputs if t in producer]
    return found


def _topological(ops: list[Op]) -> list[Op]:
    """Order ops so that producers come first; ties keep the order of the job."""
    producer = {name: op for op in ops for _, name in op.outputs}
    order: list[Op] = []
    state: dict[str, int] = {}
    for root in ops:
        stack = [(root, False)]
        while stack:
            op, expanded = stack.pop()
            if expanded:
                order.append(op)
            elif op.name not in state:
                state[op.name] = 1
                stack.append((op, True))
                before = [producer[t] for _, t in op.inputs if t in producer]
                stack += [(b, False) for b in reversed(before) if b.name not in state]
    return order


def _dtype(number: int) -> str:
    name = data_type_pb2.DataType.Name(number)
    return _DTYPES.get(name, name)


_DTYPES = {
    "kFloat": "float32", "kDouble": "float64", "kFloat16": "float16", "kBFloat16": "bfloat16",
    "kInt8": "int8", "kUInt8": "uint8", "kBool": "bool", "kInt32": "int32", "kInt64": "int64",
}  # fmt: skip
DTYPE_NUMBERS = {name: data_type_pb2.DataType.Value(kind) for kind, name in _DTYPES.items()}
"""The engine's number of every dtype name."""


def read_sbp(entry: Any) -> Sbp:
    """Return the state on one axis that an SbpParallel message of the engine holds."""
    kinds = {"broadcast_parallel": "B", "partial_sum_parallel": "P"}
    which = entry.WhichOneof("parallel_type")
    return Sbp(kinds[which]) if which in kinds else Sbp("S", entry.split_parallel.axis)


def _attribute(value: Any) -> Any:
    kind = value.WhichOneof("value")
    content = getattr(value, kind)
    if kind in ("at_shape", "at_stride"):
        return tuple(content.dim)
    if kind.startswith("at_list"):
        return tuple(tuple(e.dim) if hasattr(e, "dim") else freeze(e) for e in content.val)
    return content if isinstance(content, bool | int | float | str) else str(content)


def _device(ops: list[Any]) -> str:
    tags = {op.device_tag for op in ops}
    return "cuda" if "cuda" in tags else "cpu"
