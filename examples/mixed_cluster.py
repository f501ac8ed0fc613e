"""Plan for a cluster of unlike nodes, one with eight H100 and one with eight A100; nothing is run.

python examples/mixed_cluster.py gpt.json

Each stage gets the part of the cluster that suits it. The profile is put together from two bundled ones,
with the links of the slower; `python -m autoddl fit-network --kinds` measures that of your own cluster.
gpt.json is the program of a training step, as `python -m autoddl capture` writes it: see gpt.py.
"""

import sys

from msgspec.structs import replace

import autoddl

(program,) = sys.argv[1:]
old, new = autoddl.load_profile("a100-2x16"), autoddl.load_profile("h100")
both = replace(old, name="a100 and h100", devices={"a100": old.device, "h100": new.device})
plan = autoddl.optimize(program, cluster="1*h100x8 + 1*a100x8", profile=both, budget=20)
print(plan)
plan.save("mixed_plan.json")
