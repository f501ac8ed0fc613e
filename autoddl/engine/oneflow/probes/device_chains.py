"""Chains of ops that time one op family each; probes.link_probe runs them on all ranks at once.

Every rank computes the whole chain (all tensors are broadcast), so the ranks share the cores and
the memory bus as they do in a training step, and none waits for another. An op's time is (the
median time of a call of the chain − that of its twin) / `steps`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import oneflow as flow

_SIDE = 512  # of the square matrices
_LARGE = 1 << 22  # elements of the bandwidth probe: more bytes than caches hold
_MEDIUM = (1, 256, 1024)  # an activation


@dataclass(frozen=True)
class OpChain:
    """OpChain and twin differ by `steps` ops, whose `flops` and `moved_bytes` are those of one.

    `op` maps (x, the other inputs) to the next x. The chain repeats it 2·`steps` times, the twin
    `steps` times; with `twin_op`, which does what `op` does besides the op that is measured, each
    repeats its own `steps` times. `moved_bytes` are read and written.
    """

    inputs: tuple[np.ndarray, ...]
    op: Callable[..., Any]
    steps: int
    flops: float
    moved_bytes: float
    twin_op: Callable[..., Any] | None = None

    def bodies(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return the chain and its twin as functions of the inputs."""
        if self.twin_op is None:
            return _repeat(self.op, 2 * self.steps), _repeat(self.op, self.steps)
        return _repeat(self.op, self.steps), _repeat(self.twin_op, self.steps)


def _repeat(op: Callable[..., Any], count: int) -> Callable[..., Any]:
    def run(x: Any, *others: Any) -> Any:
        for _ in range(count):
            x = op(x, *others)
        return x

    return run


def chains() -> dict[str, OpChain]:
    """Return the chains: "overhead", "bandwidth", and one for each op family by its name.

    No value becomes denormal, which would slow the CPU down; flops are counted as in sbp.rules.
    """
    one = np.ones((1, 1, 1))
    medium = np.random.default_rng(0).standard_normal(_MEDIUM)  # the time of gelu depends on x
    return {
        "overhead": OpChain((one, one), lambda x, s: x * s, 120, 1.0, 8.0),
        "bandwidth": OpChain(
            (np.ones((1, 1, _LARGE)), one), lambda x, s: x * s, 4, _LARGE, 8.0 * _LARGE
        ),
        "matmul": OpChain(
            (np.ones((_SIDE, _SIDE)), np.eye(_SIDE)),
            flow.matmul,
            4,
            2.0 * _SIDE**3,
            12.0 * _SIDE**2,
        ),
        "conv": _conv(),
        "elementwise": OpChain((medium,), flow.gelu, 3, 8.0 * medium.size, 8.0 * medium.size),
        "reduction": _reduction(float(medium.size)),
        "normalisation": OpChain(
            (medium,), lambda x: flow.softmax(x, 2), 5, 5.0 * medium.size, 8.0 * medium.size
        ),
    }


def _conv() -> OpChain:
    """Return 3×3 convolutions of 32 to 32 channels that copy their input."""
    image, weight = np.ones((8, 32, 28, 28)), np.zeros((32, 32, 3, 3))
    weight[range(32), range(32), 1, 1] = 1.0
    return OpChain(
        (image, weight),
        lambda x, w: flow.nn.functional.conv2d(x, w, padding=1),
        3,
        2.0 * image.size * 32 * 9,
        8.0 * image.size + 4.0 * weight.size,
    )


def _reduction(size: float) -> OpChain:
    """Return sums over the last dim of x·s; the next s is an element of the last result."""
    return OpChain(
        (np.ones((1, 1, 1)), np.full(_MEDIUM, 1 / _MEDIUM[2])),
        lambda s, x: (x * s).sum(2, keepdim=True)[:, :1, :],
        6,
        size,
        4.0 * size,
        twin_op=lambda s, x: (x * s)[:, :1, :1],
    )
