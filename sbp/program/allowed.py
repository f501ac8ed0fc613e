"""What names, devices and fingerprints in saved files may be: they end in scripts and on terminals.

A name may be any printable text ("model.fc1-matmul-3", also with quotes): who writes it as code or into
a comment has to quote it. Line ends, control characters and what turns the direction of text are refused,
and names that are no longer names.
"""

from __future__ import annotations

from autoddl.errors import AutoDDLError, shown

DEVICES = ("cpu", "cuda")
MOST_NAME, MOST_TEXT = 1000, 1 << 16  # characters of a name, and of what lists many


def check_name(text: object, what: str = "name", most: int = MOST_NAME) -> None:
    """Raise AutoDDLError unless a name is printable text of so many characters at most."""
    if not isinstance(text, str) or not text.isprintable():
        raise AutoDDLError(f"{what} {shown(text)}; allowed is text without line ends and controls")
    if len(text) > most:
        raise AutoDDLError(
            f"{what} {shown(text, 60)} of {len(text)} characters; allowed are {most}"
        )


def check_device(text: object) -> None:
    """Raise AutoDDLError unless a device type is one that programs are captured on."""
    if text not in DEVICES:
        raise AutoDDLError(f"device {shown(text)}; allowed are {', '.join(DEVICES)}")
