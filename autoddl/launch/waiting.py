"""Let OneFlow's scheduler wait asleep instead of spinning, for ranks that share cores; stdlib only.

While anything is under way, and so all through a training step, a thread of each OneFlow process calls
`sched_yield` over and over: on a core of its own that costs nothing, but ranks that share cores lose
nearly half of them to it, and every message waits its turn. Here that call becomes a sleep of 200 µs:
the entry of liboneflow's jump table (ELF `JMPREL`) for `sched_yield` is pointed to a few bytes of
machine code that call `usleep`. x86-64 Linux only; elsewhere, and where anything is not as expected,
nothing is changed. `autoddl run --share-cores no` does without.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

# Less takes a share of a core that steps miss, more makes eager collectives wait.
_SLEEP_US = 200
_LIBRARY = "/liboneflow-"
_TYPE_JUMP_SLOT = 7
_PT_DYNAMIC = 2
_DT_PLTRELSZ, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_JMPREL = 2, 5, 6, 10, 23
_MAP_FAILED = 2**64 - 1


def install() -> None:
    """Change the call as soon as OneFlow has been imported, by whomever."""
    if sys.platform == "linux" and platform.machine() == "x86_64":
        sys.meta_path.insert(0, _ImportWatch())


class _ImportWatch:
    """Find no module, but see the imports that follow that of OneFlow's library."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.startswith("oneflow.") and "oneflow._oneflow_internal" in sys.modules:
            sys.meta_path.remove(self)
            redirect()
        return None


def redirect() -> bool:
    """Let liboneflow's `sched_yield` sleep; return whether that was possible."""
    base = _base()
    slot = None if base is None else _slot(base, b"sched_yield")
    if slot is None:
        return False
    libc = ctypes.CDLL(None)
    usleep = ctypes.cast(libc.usleep, ctypes.c_void_p).value
    # sub rsp, 8; mov edi, µs; mov rax, usleep; call rax; xor eax, eax; add rsp, 8; ret
    wait = struct.pack("<BIHQH", 0xBF, _SLEEP_US, 0xB848, usleep, 0xD0FF)
    code = b"\x48\x83\xec\x08" + wait + b"\x31\xc0\x48\x83\xc4\x08\xc3"
    # Not an mmap object: it would be unmapped at exit, when OneFlow's threads are still running.
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    rights = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    page = libc.mmap(None, mmap.PAGESIZE, rights, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if page in (None, _MAP_FAILED):  # the system forbids memory that is written and executed
        return False
    ctypes.memmove(page, code, len(code))
    ctypes.c_uint64.from_address(slot).value = page
    return True


def _base() -> int | None:
    """Return the address at which liboneflow is loaded."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            if _LIBRARY in line and line.split()[2] == "00000000":
                return int(line.partition("-")[0], 16)
    return None


def _slot(base: int, symbol: bytes) -> int | None:
    """Return the address of the jump table's entry for a symbol, if it can be written."""
    dynamic = _dynamic(base)
    names = ctypes.string_at(dynamic[_DT_STRTAB], dynamic[_DT_STRSZ])
    name = names.find(b"\0" + symbol + b"\0") + 1
    jumps = ctypes.string_at(dynamic[_DT_JMPREL], dynamic[_DT_PLTRELSZ])
    for offset, info, _ in struct.iter_unpack("<QQq", jumps):
        if info & 0xFFFFFFFF == _TYPE_JUMP_SLOT:
            entry = dynamic[_DT_SYMTAB] + 24 * (info >> 32)
            if name and ctypes.c_uint32.from_address(entry).value == name:
                return base + offset if _writable(base + offset) else None
    return None


def _dynamic(base: int) -> dict[int, int]:
    """Return the entries of the dynamic section by tag; addresses are absolute."""
    header = ctypes.string_at(base, 64)
    (table,), (size, count) = (
        struct.unpack_from("<Q", header, 32),
        struct.unpack_from("<HH", header, 54),
    )
    for i in range(count):
        kind, _, _, address = struct.unpack_from(
            "<IIQQ", ctypes.string_at(base + table + i * size, 24)
        )
        if kind == _PT_DYNAMIC:
            break
    else:
        return {}
    found: dict[int, int] = {}
    at = base + address
    while True:
        tag, value = struct.unpack("<qQ", ctypes.string_at(at, 16))
        if tag == 0:
            return found
        is_address = tag in (_DT_STRTAB, _DT_SYMTAB, _DT_JMPREL)
        found[tag] = value + base if is_address and value < base else value
        at += 16


def _writable(address: int) -> bool:
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, rights = line.split()[:2]
            first, _, last = span.partition("-")
            if int(first, 16) <= address < int(last, 16):
                return rights.startswith("rw")
    return False
