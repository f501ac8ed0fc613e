"""Op rules: one file per operator family; importing this package registers all of them."""

from autoddl.sbp.rules import (
    conv,
    elementwise,
    embedding,
    indexing,
    loss,
    matmul,
    normalisation,
    optimizer,
    pointwise_loss,
    reduction,
    routing,
    shape,
    softmax_loss,
)

__all__ = [
    "conv",
    "elementwise",
    "embedding",
    "indexing",
    "loss",
    "matmul",
    "normalisation",
    "optimizer",
    "pointwise_loss",
    "reduction",
    "routing",
    "shape",
    "softmax_loss",
]
