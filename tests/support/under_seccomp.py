"""Runs a program under a seccomp profile in Docker's format: `under_seccomp.py PROFILE COMMAND...`.

The rules become a BPF filter through libseccomp, the library that container runtimes use too. Only what
config/seccomp-shardd.json uses is understood; anything else in a profile is an error.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any, Final

LIBRARY: Final = "libseccomp.so.2"
_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000
_UNKNOWN_CALL: Final = -1  # libseccomp: no such name
_MASKED_EQ: Final = 7


class _Argument(ctypes.Structure):
    _fields_ = (
        ("index", ctypes.c_uint),
        ("operation", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


def _action(name: str, errno: int) -> int:
    return {"SCMP_ACT_ALLOW": _ALLOW, "SCMP_ACT_ERRNO": _ERRNO | errno}[name]


def _argument(given: dict[str, Any]) -> _Argument:
    if given["op"] != "SCMP_CMP_MASKED_EQ":
        raise ValueError(f"comparison {given['op']}")
    return _Argument(given["index"], _MASKED_EQ, given["value"], given["valueTwo"])


def apply(profile: dict[str, Any]) -> None:
    """From now on this process and its children are under the profile. OSError."""
    library = ctypes.CDLL(LIBRARY, use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    default = _action(profile["defaultAction"], profile["defaultErrnoRet"])
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(default)))
    for rule in profile["syscalls"]:
        arguments = [_argument(each) for each in rule.get("args", [])]
        array = (_Argument * max(1, len(arguments)))(*arguments)
        action = _action(rule["action"], rule.get("errnoRet", 0))
        for name in rule["names"]:
            number = library.seccomp_syscall_resolve_name(name.encode())
            if number == _UNKNOWN_CALL:
                continue  # a newer call than the library; runtimes leave it out too
            result = library.seccomp_rule_add_array(context, ctypes.c_uint32(action), number, len(arguments), array)
            if result != 0:
                raise OSError(-result, f"rule for {name}")
    result = library.seccomp_load(context)
    if result != 0:
        raise OSError(-result, "seccomp_load")


def main() -> None:
    apply(json.loads(Path(sys.argv[1]).read_text()))
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
