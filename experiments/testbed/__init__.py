"""A cluster on one machine: nodes as network namespaces, joined by links of a given rate.

`python -m experiments.testbed --nodes 2 --ranks 2 --rate 500mbit -- train.py` runs the ranks of a
script on it; `with Testbed(nodes=2, ranks=2, rate="500mbit") as bed: bed.run(["train.py"])` too.
"""

from experiments.testbed.bed import Testbed
from experiments.testbed.spec import TestbedError, TestbedSpec

__all__ = ["Testbed", "TestbedError", "TestbedSpec"]
