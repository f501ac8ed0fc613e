"""BatchNorms in training need several values per channel: the variance of one is no number.

OneFlow 0.9 says nothing, makes zeros of the activation, and fills running variances with NaN.
"""

from __future__ import annotations

from autoddl.errors import AutoDDLError
from autoddl.sbp.program import Program

_TYPES = ("normalization", "normalization_add_relu", "cudnn_fused_normalization_add_relu")


def check_statistics(program: Program, micro_batches: int = 1) -> None:
    """Refuse a program, of one of so many micro-batches, whose BatchNorms see one value per channel.

    Raises:
        AutoDDLError: the first of them.
    """
    for op in program.ops:
        if op.type not in _TYPES or not op.attr["training"]:
            continue
        x = program.tensor[dict(op.inputs)["x_0"]]
        if x.elements != x.shape[op.attr["axis"]]:
            continue
        several = f" in each of {micro_batches} micro-batches" if micro_batches > 1 else ""
        fewer = "fewer micro-batches, " if several else ""
        raise AutoDDLError(
            f"op {op.name}: got shape {x.shape}{several} for a BatchNorm in training, one value per "
            f"channel, whose variance is no number; allowed are two and more; give {fewer}a larger "
            "batch, or a model that is in evaluation (.eval())"
        )
