"""A second, unbuilt copy of an nn.Graph, so that the user's own graph object stays as it was.

The copy shares modules and optimizers with the original and has its own name, configuration and
proxies; building or compiling it leaves no trace in the original.
"""

from __future__ import annotations

import copy
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import oneflow as flow
from oneflow.nn.graph.graph_block import GraphModule
from oneflow.nn.graph.proxy import get_proxy_cls
from oneflow.nn.graph.util import ArgsTree

from autoddl.engine.oneflow.capture import op_names

_MODULE_SETTINGS = ("_is_null", "_stage_id", "_stage_placement", "_activation_checkpointing")


def shadow(graph: flow.nn.Graph) -> flow.nn.Graph:
    """Return an unbuilt copy of `graph` over the same modules and optimizers."""
    twin = object.__new__(type(graph))
    twin.__dict__.update(graph.__dict__)
    twin._generate_name()
    twin.config = copy.copy(graph.config)
    twin.config.proto = type(graph.config.proto)()
    twin.config.proto.CopyFrom(graph.config.proto)
    if graph.config.training:
        train = twin.config.proto.train_conf  # a built graph has entries of its own here
        del train.optimizer_conf[:]
        train.ClearField("loss_lbn")
    for name in ("_variables_conf", "_blocks"):
        setattr(twin, name, OrderedDict())
    for name in ("_unique_global_op_dict", "_unique_identity_op_dict"):
        setattr(twin, name, {})
    twin._additional_variable_tobe_loaded = OrderedDict(graph._additional_variable_tobe_loaded)
    twin._args_repr, twin._outs_repr = [], []
    twin._is_compiled = twin._is_global_view = False
    twin._cur_index_of_ouputs_buffer = 0
    for name in ("_forward_job_proto", "_full_job_proto", "_compiled_job_proto"):
        setattr(twin, name, None)
    twin._job_id = twin._c_nn_graph = twin._oneflow_internal_graph_ir__ = None
    for name, block in graph._blocks.items():
        module = block.to(flow.nn.Module)
        twin._blocks[name] = get_proxy_cls(module)(module, "", name, weakref.proxy(twin))
        _copy_settings(block, twin._blocks[name])
    return twin


def _copy_settings(source: Any, target: Any) -> None:
    old, new = source.to(GraphModule), target.to(GraphModule)
    if old is None or new is None:
        return
    for name in _MODULE_SETTINGS:
        if hasattr(old, name):
            setattr(new, name, getattr(old, name))
    for name, child in getattr(source, "_modules", {}).items():
        if child is not None and name in target._modules:
            _copy_settings(child, target._modules[name])


def of_tensors(call: Any, make: Callable[[str, flow.Tensor], Any]) -> Any:
    """Return positional and keyword arguments with what `make` gives for each tensor in its place.

    It gets the tensor's name in programs, too.
    """

    def leaf(node: Any) -> Any:
        value = node.value()
        if not isinstance(value, flow.Tensor):
            return value
        path = node.prefix().removeprefix("input.")
        return make(f"input.{op_names.place(path, node.name())}", value)

    return ArgsTree(call, True, "input", None).map_leaf(leaf)


def modules(graph: flow.nn.Graph) -> list[flow.nn.Module]:
    """Return the modules that were assigned to the graph."""
    return [block.to(flow.nn.Module) for block in graph._blocks.values()]


def variables(graph: flow.nn.Graph) -> Iterator[flow.Tensor]:
    """Yield every parameter and buffer of the graph once."""
    seen = set()
    for module in modules(graph):
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor not in seen:
                seen.add(tensor)
                yield tensor


def device_type(tensor: flow.Tensor) -> str:
    """Return the type of the devices that a tensor is on."""
    return str(tensor.placement.type if tensor.is_global else tensor.device.type)


def named_variables(graph: flow.nn.Graph) -> Iterator[tuple[str, flow.Tensor]]:
    """Yield every parameter and buffer of the graph once, with its name in programs."""
    seen = set()
    for block, root in zip(graph._blocks, modules(graph), strict=True):
        for name, tensor in (*root.named_parameters(), *root.named_buffers()):
            if tensor not in seen:
                seen.add(tensor)
                yield f"{block}.{name}", tensor


def replace_variables(
    graph: flow.nn.Graph, make: Callable[[str, flow.Tensor], flow.Tensor]
) -> None:
    """Replace the graph's parameters and buffers by what `make` returns, and tell its optimizers."""
    replaced: dict[flow.Tensor, flow.Tensor] = {}
    for name, tensor in list(named_variables(graph)):
        made = make(name, tensor)
        if isinstance(tensor, flow.nn.Parameter) and not isinstance(made, flow.nn.Parameter):
            made = flow.nn.Parameter(made, requires_grad=tensor.requires_grad)
        replaced[tensor] = made
    for root in modules(graph):
        for module in root.modules():
            for table in (module._parameters, module._buffers):
                for key, tensor in table.items():
                    if tensor is not None:
                        table[key] = replaced[tensor]
    for entry in graph._opts:
        optimizer = entry["optim"]
        for group in optimizer.param_groups:
            group._parameters = [replaced.get(p, p) for p in group._parameters]
        state_of = getattr(optimizer, "_state", None)
        if state_of:
            moved = {
                k if isinstance(k, str) else replaced.get(k, k): v for k, v in state_of.items()
            }
            state_of.clear()
            state_of.update(moved)


@contextmanager
def kept_gradients(graph: flow.nn.Graph) -> Iterator[None]:
    """Put `grad` of every parameter back afterwards: tracing leaves lazy tensors in it.

    Those that the graph's own trace has left, which has run already, are none and can't be put back.
    """
    kept = []
    for tensor in variables(graph):
        if tensor.requires_grad:
            grad = tensor.grad
            kept.append((tensor, None if grad is None or grad.is_lazy else grad))
            tensor.grad = None
    try:
        yield
    finally:
        for tensor, grad in kept:
            tensor.grad = grad
