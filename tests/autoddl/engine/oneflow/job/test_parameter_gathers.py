"""Which gathers of parameters wait for which."""

from __future__ import annotations

from autoddl.engine.oneflow.job.parameter_gathers import gathers_behind
from autoddl.sbp.layout import NONE, Layout, Redistribution
from autoddl.sbp.program import Op, Program, Tensor
from autoddl.sbp.state import NdSbp

S, B = NdSbp.parse("S0"), NdSbp.parse("B")


def test_parameters_are_gathered_in_the_order_in_which_they_are_read() -> None:
    sizes = {"late": 512, "whole": 512, "small": 32, "large": 512, "first": 512, "backward": 512}
    order = ("first", "small", "large", "whole", "late", "backward")
    ops = tuple(Op(name, "tanh", (("x_0", name),), (("y_0", f"{name} out"),)) for name in order)
    tensors = [Tensor(name, (512, rows), "float32", "parameter") for name, rows in sizes.items()]
    tensors += [Tensor(f"{name} out", (512, 512), "float32", "activation") for name in order]
    program = Program(ops, tuple(tensors), (), (), (), None)
    moved = [Redistribution(name, (B,), ((name, "x_0"),)) for name in sizes if name != "backward"]
    moved.append(Redistribution("backward", (B,), (("backward", "x_0"),), after="late"))
    held = {**dict.fromkeys(sizes, S), "whole": B}
    signatures = {name: {"x_0": B, "y_0": B} for name in order}
    found = Layout.of(program, signatures, held, {}, moved)
    # 1 MiB each, but for the small one; with that of the large one ended 1 MiB lies before the last
    assert {
        moved[number].tensor: moved[other].tensor
        for number, other in enumerate(gathers_behind(found).tolist())
        if other != NONE
    } == {"late": "small"}


def test_none_waits_where_nothing_is_gathered() -> None:
    found = Layout.of(Program((), (), (), (), (), None), {}, {}, {}, ())
    assert gathers_behind(found).tolist() == []
