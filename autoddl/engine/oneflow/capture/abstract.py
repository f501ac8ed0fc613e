"""Build and trace models without allocating their parameters.

Inside `abstract_parameters()` new parameters are zero-stride views of one element: shapes are real,
memory is not. What initialisers of them ask for is noted, and drawn when a plan is applied, by each rank
for its shards (draws.py). Inside `without_values(graph)` a graph whose variables are spread over ranks
has such tensors in their place, so that it can be traced as on one device.

All these parameters are views of NaN, by which values that were computed from one can be told.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import oneflow as flow
from oneflow import nn
from oneflow.nn import init

from autoddl.engine.oneflow.capture import draws
from autoddl.engine.oneflow.capture.draws import Draw
from autoddl.engine.oneflow.capture.shadow import (
    named_variables,
    of_tensors,
    replace_variables,
    variables,
)
from autoddl.errors import AutoDDLError

_MOST_REAL = 1 << 22  # elements of constants that are made at once: masks are computed from them
_ENSURE = "_Graph__ensure_state_tensors_contiguous"

_noted: dict[int, tuple[flow.Tensor, Draw | None]] = {}
"""Stand-ins by their ids, which are theirs for ever that way, with how their values are drawn if told."""


@contextmanager
def abstract_parameters(seed: int = 0) -> Iterator[None]:
    """Build modules whose parameters take no memory until a plan is applied to their graph.

    Build the model (and its optimizer) inside, plan it inside or outside. `apply` then draws what
    `oneflow.nn.init` was asked for, on each rank for its shards: the same numbers on every mesh, others
    than those of `oneflow.manual_seed`. Values that no initialiser gave (copied ones, orthogonal
    matrices) have to come from a checkpoint.
    """
    notes = _Notes(seed)
    real_tensor, real_parameter = flow.Tensor, nn.Parameter
    tensor, parameter = _called(real_tensor, notes.tensor), _called(real_parameter, notes.parameter)
    replaced: list[tuple[Any, str, Any]] = [
        *((flow, name, notes.factory(name)) for name in _FACTORIES),
        *((init, name, notes.initialiser(name)) for name in _INITIALISERS),
        *((real_tensor, name, notes.method(name)) for name in _METHODS),
        (
            real_tensor,
            "data",
            property(
                _itself_if_noted(real_tensor.data.__get__), notes.assigned(real_tensor.data.__set__)
            ),
        ),
        (real_tensor, "detach", _itself_if_noted(real_tensor.detach)),
        *((module, "Tensor", tensor) for module in _holders("Tensor", real_tensor)),
        *((module, "Parameter", parameter) for module in _holders("Parameter", real_parameter)),
    ]
    with ExitStack() as patches:
        for target, name, replacement in replaced:
            patches.enter_context(mock.patch.object(target, name, replacement))
        yield


def is_stand_in(tensor: flow.Tensor) -> bool:
    """Tell whether a tensor has no values yet."""
    if id(tensor) in _noted:
        return True
    return not tensor.is_global and tensor.numel() > 1 and not any(tensor.stride())


def told(tensor: flow.Tensor) -> bool:
    """Tell whether something tells the values of a stand-in."""
    return id(tensor) in _noted and _noted[id(tensor)][1] is not None


def drawn(tensor: flow.Tensor, slices: Sequence[slice]) -> flow.Tensor:
    """Return the part of a stand-in that the slices cut out, with its values; zeros if none are told."""
    dtype = np.float64 if tensor.dtype == flow.float64 else np.float32
    shape = tuple(tensor.shape)
    draw = _noted[id(tensor)][1] if told(tensor) else None
    array = draws.values(draw or _ZEROS, shape, slices, dtype)
    return flow.tensor(array, device=tensor.device).to(tensor.dtype)


def without_told_values(graph: flow.nn.Graph) -> list[str]:
    """Return the variables of a graph that were built without memory, and whose values nothing tells.

    Raises:
        AutoDDLError: some was computed from others that have no values yet.
    """
    found = []
    for name, tensor in named_variables(graph):
        if is_stand_in(tensor):
            found += [] if told(tensor) else [name]
        elif _computed_from_stand_ins(tensor):
            raise AutoDDLError(
                f"apply: {name} was computed inside abstract_parameters() from parameters that have "
                "no values there; compute it outside, or from arrays of NumPy"
            )
    return found


def _computed_from_stand_ins(tensor: flow.Tensor) -> bool:
    """Tell whether a tensor has values of its own that were taken from stand-ins: NaN."""
    if not _noted or tensor.is_global or not tensor.is_floating_point():
        return False
    return bool(flow.isnan(tensor.detach()).any().numpy())


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
    args, kwargs = of_tensors(call, lambda _, tensor: _stand_in(tensor, device))
    return args, kwargs


def _stand_in(tensor: flow.Tensor, device: str) -> flow.Tensor:
    element = flow.zeros(1, dtype=tensor.dtype, device=device)
    return _view(element, tuple(tensor.shape))


def _view(element: flow.Tensor, shape: tuple[int, ...]) -> flow.Tensor:
    """Return a tensor of a shape that takes the memory of one element."""
    return element.expand(*shape) if shape else element.squeeze(0)


def _holders(name: str, value: Any) -> list[Any]:
    """Return the modules that have a class under a name: OneFlow's, and users' that imported it."""
    return [m for m in list(sys.modules.values()) if getattr(m, "__dict__", {}).get(name) is value]


_FACTORIES: dict[str, tuple[str, tuple[float, ...]] | None] = {
    "empty": None, "zeros": ("constant", (0.0,)), "ones": ("constant", (1.0,)),
    "randn": ("normal", (0.0, 1.0)), "rand": ("uniform", (0.0, 1.0)),
}  # fmt: skip
# What all of oneflow.nn.init comes down to.
_INITIALISERS: dict[str, Callable[..., tuple[str, tuple[float, ...]] | None]] = {
    "uniform_": lambda a=0.0, b=1.0: ("uniform", (a, b)),
    "normal_": lambda mean=0.0, std=1.0: ("normal", (mean, std)),
    "trunc_normal_": lambda mean=0.0, std=1.0, a=-2.0, b=2.0: ("clamped", (mean, std, a, b)),
    "constant_": lambda val: ("constant", (val,)),
    "orthogonal_": lambda *_, **__: None,
    "eye_": lambda *_, **__: None,
}
_METHODS = ("fill_", "zero_", "copy_", "mul_", "__mul__", "__rmul__")
_ZEROS = Draw("constant", (0.0,), (0, 0))


class _Notes:
    """Makes stand-ins and notes what they are to be; `seed` and a note's number are a draw's key."""

    def __init__(self, seed: int) -> None:
        self._seed, self._count = seed, 0

    def make(self, shape: tuple[int, ...], dtype: Any, device: Any = None) -> flow.Tensor:
        """Return a stand-in of which nothing is told."""
        element = flow.full((1,), float("nan"), dtype=dtype, device=device)
        made = _view(element, shape)
        _noted[id(made)] = made, None
        return made

    def note(self, tensor: flow.Tensor, told: tuple[str, tuple[float, ...]] | None) -> None:
        """Note the kind and arguments of an initialiser."""
        self._count += 1
        draw = None if told is None else Draw(*told, (self._seed, self._count))
        _noted[id(tensor)] = tensor, draw

    def tensor(self, real: Any, *args: Any, **kwargs: Any) -> Any:
        """Make a tensor: of sizes a stand-in."""
        if args and all(isinstance(n, int) for n in args):
            return self.make(args, flow.float32)
        return real(*args, **kwargs)

    def parameter(self, real: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Make a parameter, of which is told what is told of its tensor."""
        made = real(data, *args, **kwargs)
        if id(data) in _noted:
            _noted[id(made)] = made, _noted[id(data)][1]
        return made

    def factory(self, name: str) -> Callable[..., Any]:
        """Return a function of OneFlow's that makes stand-ins of what is meant to be a parameter."""
        original = getattr(flow, name)

        def replacement(*args: Any, **kwargs: Any) -> Any:
            shape = args or (kwargs.get("size", ()),)
            if len(shape) == 1 and not isinstance(shape[0], int):
                shape = tuple(shape[0])
            dtype = kwargs.get("dtype") or flow.float32
            plain = kwargs.get("placement") is None and not kwargs.get("requires_grad")
            plain = plain and all(isinstance(n, int) for n in shape) and dtype.is_floating_point
            constant = name in ("zeros", "ones") and math.prod(shape) <= _MOST_REAL
            if not plain or constant:
                return original(*args, **kwargs)
            made = self.make(tuple(shape), dtype, kwargs.get("device"))
            self.note(made, _FACTORIES[name])
            return made

        return replacement

    def assigned(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what gives a tensor the data of another one, as `Module.to` does with each parameter."""

        def replacement(tensor: Any, other: Any) -> None:
            if other is tensor:  # it was on that device, and of that type
                return
            _noted.pop(id(tensor), None)
            if id(other) in _noted:
                _noted[id(tensor)] = tensor, _noted[id(other)][1]
            original(tensor, other)

        return replacement

    def initialiser(self, name: str) -> Callable[..., Any]:
        """Return a function of `oneflow.nn.init` that only notes what a stand-in is to be."""
        original, tells = getattr(init, name), _INITIALISERS[name]

        def replacement(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if id(tensor) not in _noted:
                return original(tensor, *args, **kwargs)
            self.note(tensor, tells(*args, **kwargs))
            return tensor

        return replacement

    def method(self, name: str) -> Callable[..., Any]:
        """Return a tensor's method that does to a stand-in's note what it would do to values."""
        original = getattr(flow.Tensor, name)

        @functools.wraps(original)
        def replacement(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if id(tensor) not in _noted:
                return original(tensor, *args, **kwargs)
            if name.strip("_") in ("mul", "rmul"):
                return self._times(tensor, args[0], in_place=name == "mul_")
            value = {"zero_": (0.0,), "fill_": args}.get(name)
            self.note(tensor, None if value is None else ("constant", tuple(value)))
            return tensor

        return replacement

    def _times(self, tensor: Any, factor: Any, *, in_place: bool) -> Any:
        draw = _noted[id(tensor)][1]
        if draw is not None and isinstance(factor, int | float):
            draw = dataclasses.replace(draw, factor=draw.factor * factor)
        else:
            draw = None
        if not in_place:
            tensor = self.make(tuple(tensor.shape), tensor.dtype, tensor.device)
        _noted[id(tensor)] = tensor, draw
        return tensor


def _itself_if_noted(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes another tensor of the same values, of stand-ins none."""

    def replacement(tensor: Any) -> Any:
        return tensor if id(tensor) in _noted else original(tensor)

    return replacement


def _called(real: Any, make: Callable[..., Any]) -> Any:
    """Return a class that is in all another one, but is called through a function."""

    class _Meta(type(real)):  # type: ignore[misc]
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return make(real, *args, **kwargs)

        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, real)

        def __getattr__(cls, name: str) -> Any:
            return getattr(real, name)

    return _Meta(real.__name__, (), {})
