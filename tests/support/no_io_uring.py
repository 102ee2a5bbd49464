"""`python no_io_uring.py CALL... -- COMMAND...`: runs a command under a seccomp filter that refuses the named io_uring
calls (setup, enter, register) with EPERM, as the default profile of a container runtime does."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Sequence
from typing import Final

CALLS: Final = {"setup": 425, "enter": 426, "register": 427}  # the same numbers on every architecture
_AUDIT_ARCH_X86_64: Final = 0xC000003E
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_SET_SECCOMP: Final = 22
_MODE_FILTER: Final = 2
_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS; offset 0: number of the call, 4: architecture
_JUMP_IF_EQUAL: Final = 0x15
_RETURN: Final = 0x06
_ALLOW: Final = 0x7FFF0000
_REFUSE: Final = 0x00050000 | errno.EPERM


def _filter(numbers: Sequence[int]) -> bytes:
    """Classic BPF: (code, jump if true, jump if false, value) each."""
    program = [(_LOAD, 0, 0, 4), (_JUMP_IF_EQUAL, 0, len(numbers) + 1, _AUDIT_ARCH_X86_64), (_LOAD, 0, 0, 0)]
    program += [(_JUMP_IF_EQUAL, len(numbers) - place, 0, number) for place, number in enumerate(numbers)]
    program += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def refuse(calls: Sequence[str]) -> None:
    """From now on, for this process and all its children. OSError when the kernel does not take the filter."""
    if platform.machine() != "x86_64":
        raise OSError("only for x86-64")
    code = _filter([CALLS[call] for call in calls])
    memory = ctypes.create_string_buffer(code)
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(memory)))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _MODE_FILTER, program, 0, 0)):
        if libc.prctl(*arguments) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    split = sys.argv.index("--")
    refuse(sys.argv[1:split])
    os.execvp(sys.argv[split + 1], sys.argv[split + 1 :])
