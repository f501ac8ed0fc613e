"""References of convolutions and their kin: the engine's own kernels, and by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from autoddl.sbp.numpy_oracle.simulated_program import run_program


def joined(parts: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what makes a module of a function of one tensor."""

    def make(nn: Any) -> Any:
        class Joined(nn.Module):
            def forward(self, x: Any) -> Any:
                return parts(x)

        return Joined()

    return make


def cat(x: Any) -> Any:
    import oneflow as flow

    return flow.cat([x, x[:, :4] * 2.0, x.narrow(1, 3, 2) * 3.0], dim=1)


def stack(x: Any) -> Any:
    import oneflow as flow

    return flow.stack([x, x * 2.0], dim=-1)


IMAGE = {1: (2, 8, 9), 2: (2, 8, 6, 7), 3: (2, 8, 4, 5, 6)}
LAYERS: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "conv1d": (1, lambda nn: nn.Conv1d(8, 6, 3, 2, 1)),
    "conv2d, dilated": (2, lambda nn: nn.Conv2d(8, 6, 2, 1, 2, dilation=2)),
    "conv2d, grouped": (2, lambda nn: nn.Conv2d(8, 12, (3, 2), (1, 2), 1, groups=2)),
    "conv2d, depthwise": (2, lambda nn: nn.Conv2d(8, 16, 3, 1, 1, groups=8, bias=False)),
    "conv3d": (3, lambda nn: nn.Conv3d(8, 4, 3, 2, 1)),
    "deconv1d": (1, lambda nn: nn.ConvTranspose1d(8, 4, 3, 2, 1)),
    "deconv2d": (2, lambda nn: nn.ConvTranspose2d(8, 4, 3, 2, 1, output_padding=1)),
    "deconv2d, patches": (2, lambda nn: nn.ConvTranspose2d(8, 6, 2, 2)),
    "max_pool_1d": (1, lambda nn: nn.MaxPool1d(3, 2, 1)),
    "max_pool_2d": (2, lambda nn: nn.MaxPool2d(3, 2, 1)),
    "max_pool_3d": (3, lambda nn: nn.MaxPool3d(3, 2, 1)),
    "adaptive_max_pool1d": (1, lambda nn: nn.AdaptiveMaxPool1d(4)),
    "adaptive_max_pool2d": (2, lambda nn: nn.AdaptiveMaxPool2d((4, 3))),
    "adaptive_max_pool3d": (3, lambda nn: nn.AdaptiveMaxPool3d((2, 3, 4))),
    "avg_pool_1d": (1, lambda nn: nn.AvgPool1d(3, 2, 1, ceil_mode=True)),
    "avg_pool_2d": (2, lambda nn: nn.AvgPool2d(3, 2, 1, True, count_include_pad=False)),
    "avg_pool_2d, divided": (2, lambda nn: nn.AvgPool2d(3, 2, 1, divisor_override=5)),
    "avg_pool_3d": (3, lambda nn: nn.AvgPool3d(3, 2, 1, count_include_pad=True)),
    "adaptive_avg_pool1d": (1, lambda nn: nn.AdaptiveAvgPool1d(4)),
    "adaptive_avg_pool2d": (2, lambda nn: nn.AdaptiveAvgPool2d((4, 3))),
    "adaptive_avg_pool3d": (3, lambda nn: nn.AdaptiveAvgPool3d((2, 3, 4))),
    "upsample_nearest_1d": (1, lambda nn: nn.Upsample(scale_factor=2, mode="nearest")),
    "upsample_nearest_2d": (2, lambda nn: nn.Upsample(size=(8, 5), mode="nearest")),
    "upsample_nearest_3d": (3, lambda nn: nn.Upsample(scale_factor=2, mode="nearest")),
    "upsample_linear_1d": (1, lambda nn: nn.Upsample(scale_factor=2.0, mode="linear")),
    "upsample_bilinear_2d": (2, lambda nn: nn.Upsample(size=(9, 4), mode="bilinear")),
    "upsample_bilinear_2d, aligned": (
        2, lambda nn: nn.Upsample(scale_factor=2.0, mode="bilinear", align_corners=True),
    ),
    "upsample_trilinear_3d": (3, lambda nn: nn.Upsample(scale_factor=1.5, mode="trilinear")),
    "upsample_bicubic_2d": (2, lambda nn: nn.Upsample(scale_factor=2.0, mode="bicubic")),
    "reflection_pad1d": (1, lambda nn: nn.ReflectionPad1d((2, 3))),
    "reflection_pad2d": (2, lambda nn: nn.ReflectionPad2d((1, 0, 2, 3))),
    "replication_pad1d": (1, lambda nn: nn.ReplicationPad1d((2, 3))),
    "replication_pad2d": (2, lambda nn: nn.ReplicationPad2d((1, 0, 2, 3))),
    "normalization": (2, lambda nn: nn.BatchNorm2d(8)),
    "normalization, no running statistics": (
        1, lambda nn: nn.BatchNorm1d(8, track_running_stats=False),
    ),
    "normalization, evaluated": (2, lambda nn: nn.BatchNorm2d(8).eval()),
    "pad": (2, lambda nn: nn.ConstantPad2d((1, 0, 2, 1), 0.5)),
    "concat": (2, joined(cat)),
    "stack": (1, joined(stack)),
}  # fmt: skip


@pytest.mark.oneflow
@pytest.mark.parametrize("name", LAYERS)
def test_references_equal_the_engines_kernels(name: str) -> None:
    """Compare loss, gradients of input and parameters, and running statistics in float64."""
    import oneflow as flow
    from oneflow import nn

    from autoddl.engine.oneflow.capture.reader import capture
    from experiments.models.training import TrainGraph, mean_squared_error

    ndim, make = LAYERS[name]
    rng = np.random.default_rng(7)

    class Scaled(nn.Module):
        """The layer after a scale for each pixel, whose gradient has the input's in it."""

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(flow.tensor(rng.uniform(0.5, 2.0, IMAGE[ndim])))
            self.layer = make(nn)

        def forward(self, x: Any) -> Any:
            return self.layer(x * self.scale)

    model = Scaled().to(flow.float64)
    for parameter in model.layer.parameters():
        parameter.data.copy_(flow.tensor(rng.normal(0.3, 1.0, tuple(parameter.shape))))
    x = flow.tensor(rng.normal(size=IMAGE[ndim]))
    y = flow.tensor(rng.normal(size=tuple(Scaled.forward(model, x).shape)))
    before = {f"model.{n}": t.numpy().copy() for n, t in model.state_dict().items()}
    program = capture(TrainGraph(model, mean_squared_error, "plain_sgd"), x, y)
    op_type = name.partition(",")[0]
    assert {op_type} <= {op.type for op in program.ops}
    inputs = dict(zip(program.inputs, (x.numpy(), y.numpy()), strict=True))
    found = run_program(program, before | inputs)
    loss = mean_squared_error(model(x), y)
    loss.backward()
    np.testing.assert_allclose(found[program.loss or ""], loss.numpy(), rtol=1e-6)
    gradients = {f"model.{n}": p.grad for n, p in model.named_parameters()}
    for parameter in program.parameters:
        if parameter.gradient is not None:
            np.testing.assert_allclose(
                found[parameter.gradient],
                gradients[parameter.tensor].numpy(),
                rtol=1e-6,
                atol=1e-8,
                err_msg=parameter.tensor,
            )
    for buffer, value in model.named_buffers():
        if buffer.endswith(("running_mean", "running_var")):
            np.testing.assert_allclose(found[f"model.{buffer}"], value.numpy(), rtol=1e-6)
