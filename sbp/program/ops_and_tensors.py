"""What a program is made of: ops, logical tensors, and parameters with what belongs to them."""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from autoddl.errors import AutoDDLError

_T = TypeVar("_T")

ROLES = ("parameter", "state", "buffer", "input", "activation", "gradient", "loss", "system")
SEED = "seed"
"""The attribute of random ops that the engine's generator draws when a graph is traced."""
RANDOM = frozenset({
    "bernoulli", "coin_flip", "distributed_partial_fc_sample", "dropout", "exponential",
    "fused_matmul_bias_add_relu_dropout", "generate_random_batch_permutation_indices",
    "image_random_crop", "multinomial_with_replacement", "normal", "random_mask_like", "randperm",
    "uniform", "uniform_int",
})  # fmt: skip
"""The types of these ops."""
UNREAD = "unread"
"""An attribute that no engine sees: the results that nothing reads, and that may be anything."""
AGAIN = "autoddl-again-"
"""What names of copies begin with that make forward results once more for the backward pass."""
STAGE, TIED = "autoddl-stage-", "autoddl-tied-"
"""What names of numbered copies begin with: of an op in a stage, and of one before each part of a sum."""
READ = "read."
"""What names of inputs begin with which no call gives, but the graph reads itself."""
PHASES = ("forward", "backward", "optimizer")
ITEM_BYTES = {
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
    "int8": 1, "uint8": 1, "bool": 1, "int32": 4, "int64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tensor:
    """A logical tensor: its whole shape as on one device, its dtype name and its role (ROLES)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str

    @property
    def elements(self) -> int:
        """Return the number of elements."""
        total = 1
        for dim in self.shape:
            total *= dim
        return total

    @property
    def item_bytes(self) -> int:
        """Return the bytes of one element."""
        if self.dtype not in ITEM_BYTES:
            raise AutoDDLError(
                f"tensor {self.name}: dtype {self.dtype!r}; known are {', '.join(ITEM_BYTES)}"
            )
        return ITEM_BYTES[self.dtype]

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the whole tensor."""
        return self.elements * self.item_bytes


@dataclass(frozen=True)
class Op:
    """One operator. Operands are named port_index as the engine does ("a_0", "in_1", "out_0").

    `inputs` and `outputs` pair operand names with tensor names; `attrs` is sorted by name; `module`
    is the path of the module that emitted the op ("" for the graph itself).
    """

    name: str
    type: str
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    attrs: tuple[tuple[str, Any], ...] = ()
    phase: str = "forward"
    module: str = ""

    @cached_property
    def attr(self) -> Mapping[str, Any]:
        """Return the attributes as a mapping."""
        return dict(self.attrs)

    @property
    def is_update(self) -> bool:
        """Tell whether it is an optimizer's (others end in _update, too: scatters, slices)."""
        return self.type.endswith("_update") and "model_0" in dict(self.inputs)

    @property
    def operands(self) -> tuple[tuple[str, str], ...]:
        """Return inputs, then outputs."""
        return self.inputs + self.outputs


@dataclass(frozen=True, slots=True)
class Parameter:
    """A variable of the model with what belongs to it.

    `tensor` is read by the model; `gradient` is the tensor that the update consumes and `update`
    the op that does it (None for buffers and frozen parameters); `states` are the optimizer's
    tensors.
    """

    tensor: str
    gradient: str | None = None
    states: tuple[str, ...] = ()
    update: str | None = None


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Parameters that the optimizer treats alike: what no op of the program tells of it.

    `learning_rate` is that of the first step, before its `schedule`: a kind and its options sorted by
    name, () if there is none. `weight_decay` times a parameter is added to its gradient (decay that
    comes after it is an attribute of the update). `clip` is the largest norm that the gradients of the
    group may have together, and the order of the norm; () if they are not clipped.

    Example: 0.1 that falls by half every three steps is (("model.fc1.weight",), 0.1, ("step",
    (("gamma", 0.5), ("step_size", 3)))).
    """

    parameters: tuple[str, ...]
    learning_rate: float
    schedule: tuple[Any, ...] = ()
    weight_decay: float = 0.0
    clip: tuple[float, ...] = ()


def freeze(value: Any) -> Any:
    """Turn lists into tuples: attribute values become hashable and compare equal after JSON."""
    return tuple(freeze(v) for v in value) if isinstance(value, list | tuple) else value


def exact(value: Any) -> object:
    """Return a key that only the same values of the same types share: 1 is not 1.0."""
    try:
        return marshal.dumps(value, 2)  # later versions tell equal strings apart
    except ValueError:
        return repr(value)


class Interner:
    """Keeps equal values once: thousands of ops and tensors have the same attributes and shapes."""

    def __init__(self) -> None:
        self._known: dict[object, tuple[Any, ...]] = {}

    def __call__(self, value: tuple[_T, ...]) -> tuple[_T, ...]:
        """Return the first of the values that were the same."""
        return self._known.setdefault(exact(value), value)


def copy_of(name: str) -> str:
    """Return the op or tensor of which one is a numbered copy; the same of one that is none.

    >>> copy_of("autoddl-stage-2-w-cast"), copy_of("w-cast")
    ('w-cast', 'w-cast')
    """
    for prefix in (STAGE, TIED):
        if name.startswith(prefix):
            return name.removeprefix(prefix).partition("-")[2]
    return name
