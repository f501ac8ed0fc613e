"""Trace models without allocating their parameters.

Inside `abstract_parameters()` new tensors are zero-stride views of one element: shapes are real,
memory is not. Such a model can be captured and planned, and run once a checkpoint has filled it.
Inside `without_values(graph)` a graph whose variables are spread over ranks has such tensors in their
place, so that it can be traced as on one device.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import oneflow as flow
from oneflow import nn
from oneflow.nn import init
from oneflow.nn.graph.util import ArgsTree

from autoddl.engine.oneflow.capture.shadow import named_variables, replace_variables, variables

_FACTORIES = ("empty", "zeros", "ones", "randn", "rand")
_IN_PLACE = ("fill_", "normal_", "uniform_", "zero_", "copy_", "mul_", "__mul__", "__rmul__")
_ENSURE = "_Graph__ensure_state_tensors_contiguous"


@contextmanager
def abstract_parameters() -> Iterator[None]:
    """Build modules whose parameters and buffers take no memory; initialisation is skipped.

    Build the model (and its optimizer) inside, capture it inside or outside. Values are undefined:
    such a model can't be trained.
    """
    make = _TensorFactory()
    real_tensor = flow.Tensor
    stand_in = make.constructor(real_tensor)
    layers = [
        c
        for c in vars(nn).values()
        if isinstance(c, type) and issubclass(c, nn.Module) and "reset_parameters" in vars(c)
    ]
    replaced: list[tuple[Any, str, Any]] = [
        *((flow, name, make.factory(getattr(flow, name))) for name in _FACTORIES),
        *((init, name, _return_first) for name in vars(init) if _is_initialiser(name)),
        *((layer, "reset_parameters", _return_first) for layer in layers),
        *((real_tensor, name, _return_first) for name in _IN_PLACE),
        *((module, "Tensor", stand_in) for module in _holders(real_tensor)),
    ]
    with ExitStack() as patches:
        for target, name, replacement in replaced:
            patches.enter_context(mock.patch.object(target, name, replacement))
        yield


@contextmanager
def unmaterialised_states(graph: flow.nn.Graph) -> Iterator[None]:
    """Keep OneFlow from copying zero-stride parameters to real memory while it traces `graph`."""
    if all(tensor.is_contiguous() for tensor in variables(graph)):
        yield
        return
    with mock.patch.object(nn.Graph, _ENSURE, lambda self: None):
        yield


@contextmanager
def without_values(graph: flow.nn.Graph, device: str) -> Iterator[None]:
    """Let a graph have local variables that take no memory, for tracing."""
    kept = dict(named_variables(graph))
    replace_variables(graph, lambda _, tensor: _stand_in(tensor, device))
    try:
        yield
    finally:
        replace_variables(graph, lambda name, _: kept[name])


def stand_ins(call: tuple[Any, Any], device: str) -> tuple[Any, Any]:
    """Return positional and keyword arguments with local tensors that take no memory."""

    def leaf(node: Any) -> Any:
        value = node.value()
        return _stand_in(value, device) if isinstance(value, flow.Tensor) else value

    args, kwargs = ArgsTree(call, True, "input", None).map_leaf(leaf)
    return args, kwargs


def _stand_in(tensor: flow.Tensor, device: str) -> flow.Tensor:
    return _TensorFactory(device).make(tuple(tensor.shape), tensor.dtype)


def _holders(tensor_class: Any) -> list[Any]:
    """Return the modules whose code calls the tensor class by the global name `Tensor`."""
    layers = [m for name, m in sys.modules.items() if name.startswith("oneflow.nn.modules")]
    return [m for m in (flow, *layers) if vars(m).get("Tensor") is tensor_class]


def _return_first(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    return tensor


def _is_initialiser(name: str) -> bool:
    return name.endswith("_") and not name.startswith("_") and callable(getattr(init, name))


class _TensorFactory:
    """Make zero-stride tensors of any shape from one element per dtype."""

    def __init__(self, device: str | None = None) -> None:
        self._zeros = functools.partial(flow.zeros, device=device)
        self._elements: dict[Any, flow.Tensor] = {}

    def make(self, shape: tuple[int, ...], dtype: Any) -> flow.Tensor:
        if dtype not in self._elements:
            self._elements[dtype] = self._zeros(1, dtype=dtype)
        if not shape:
            return self._zeros(1, dtype=dtype).squeeze(0)
        return self._elements[dtype].expand(*shape)

    def factory(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def replacement(*args: Any, **kwargs: Any) -> Any:
            shape = args or (kwargs.get("size", ()),)
            if len(shape) == 1 and not isinstance(shape[0], int):
                shape = tuple(shape[0])
            plain = kwargs.get("placement") is None and not kwargs.get("requires_grad")
            if not plain or not all(isinstance(n, int) for n in shape):
                return original(*args, **kwargs)
            return self.make(tuple(shape), kwargs.get("dtype") or flow.float32)

        return replacement

    def constructor(self, real: Any) -> Any:
        """Return a stand-in for flow.Tensor: calls with sizes make views, all else goes through."""
        make = self.make

        class _Meta(type(real)):  # type: ignore[misc]
            def __call__(cls, *args: Any, **kwargs: Any) -> Any:
                if args and all(isinstance(n, int) for n in args):
                    return make(args, flow.float32)
                return real(*args, **kwargs)

            def __instancecheck__(cls, value: Any) -> bool:
                return isinstance(value, real)

            def __getattr__(cls, name: str) -> Any:
                return getattr(real, name)

        return _Meta("Tensor", (), {})
