"""Programs of another user. Only root can become somebody else."""

from __future__ import annotations

import os
import sys
from typing import Final

import pytest

NOBODY: Final = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a program as another user")


def as_nobody(modules: str, program: str, *arguments: str) -> list[str]:
    """Command that runs a Python program as a user without rights. `modules` are imported before: they may lie where
    only root can read."""
    become = f"import os; os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
    return [sys.executable, "-P", "-c", f"import {modules}\n{become}{program}", *arguments]
