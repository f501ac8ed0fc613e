"""Op rules: one file per operator family; importing this package registers all of them."""

from autoddl.sbp.rules import (
    conv,
    elementwise,
    embedding,
    loss,
    matmul,
    normalisation,
    optimizer,
    reduction,
    shape,
)

__all__ = [
    "conv",
    "elementwise",
    "embedding",
    "loss",
    "matmul",
    "normalisation",
    "optimizer",
    "reduction",
    "shape",
]
