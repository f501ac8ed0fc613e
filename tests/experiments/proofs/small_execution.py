"""On ranks: the third proof's module with toys that are smaller still; it gets all arguments."""

import sys
from unittest import mock

from experiments import models
from experiments.proofs.execution_ranks import main
from tests.experiments.proofs.small_zoo import SMALL_ZOO

with mock.patch.dict(models.ZOO, SMALL_ZOO), mock.patch.dict(models.LAYERED, SMALL_ZOO):
    main(sys.argv[1:])
