"""Op rules: one file per operator family; importing this package registers all of them."""

from autoddl.sbp.rules import (
    activation,
    cast_like,
    comparison,
    conv,
    elementwise,
    embedding,
    loss,
    matmul,
    normalisation,
    optimizer,
    reduction,
    select,
    shape,
    sources,
    unary,
)

__all__ = [
    "activation",
    "cast_like",
    "comparison",
    "conv",
    "elementwise",
    "embedding",
    "loss",
    "matmul",
    "normalisation",
    "optimizer",
    "reduction",
    "select",
    "shape",
    "sources",
    "unary",
]
