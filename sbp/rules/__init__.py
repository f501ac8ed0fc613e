"""Op rules: one file per operator family; importing this package registers all of them."""

from autoddl.sbp.rules import (
    batchnorm,
    concat,
    conv,
    elementwise,
    embedding,
    loss,
    matmul,
    normalisation,
    optimizer,
    pooling,
    reduction,
    resampling,
    shape,
)

__all__ = [
    "batchnorm",
    "concat",
    "conv",
    "elementwise",
    "embedding",
    "loss",
    "matmul",
    "normalisation",
    "optimizer",
    "pooling",
    "reduction",
    "resampling",
    "shape",
]
