"""The case table, under the name that tests import."""

from experiments.rule_cases import ADAM, CASES, MOMENTUM, UPDATE, case, case_id

__all__ = ["ADAM", "CASES", "MOMENTUM", "UPDATE", "case", "case_id"]
