"""How `pytest -n` divides the tests among its processes."""

from __future__ import annotations

from typing import Final

from xdist.scheduler import LoadScopeScheduling

ONE_SESSION: Final = "tests/spark/"  # a JVM and a server that are started once


class FilesTogether(LoadScopeScheduling):  # type: ignore[misc]
    """The tests of a file run in one process, in their order: fixtures of a module are made once, and a file that
    measures or freezes something has no company of its own kind."""

    def _split_scope(self, nodeid: str) -> str:
        return ONE_SESSION if nodeid.startswith(ONE_SESSION) else nodeid.partition("::")[0]
