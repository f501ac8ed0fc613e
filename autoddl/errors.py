"""The one family of errors that users see: what, where, got, allowed, what to do."""


class AutoDDLError(Exception):
    """Report bad input or an impossible request in one line that says what to do about it."""


class RuleError(AutoDDLError):
    """Report an op type without a rule in strict mode, or a rule that does not fit its op."""


class InfeasibleError(AutoDDLError):
    """Report that no assignment satisfies the constraints (memory, pins, divisibility).

    `needed_bytes` is the least memory per device of what was tried, if that is what is missing;
    `hopeless` tells that more was not tried since far too much is missing.
    """

    needed_bytes: int | None = None
    hopeless: bool = False
