"""Binds a worker's memory to the NUMA node of its CPU (docs/configuration.md#cpu_allocation): only in the `numa:`
forms, and a failure is logged and nothing else, since memory of another node is slower and just as good."""

from __future__ import annotations

import logging
import os
from typing import Protocol

from shardd.runtime.inheritance import WorkerInheritance

_log = logging.getLogger(__name__)


class MemoryCalls(Protocol):
    """What the native module offers; the tests record the calls."""

    def memory_bind_thread(self, node: int, /) -> None: ...
    def memory_bind_memfd(self, fd: int, size_bytes: int, node: int, /) -> None: ...


def bind_memory(inheritance: WorkerInheritance, calls: MemoryCalls | None = None) -> bool:
    """Once, before the worker allocates and starts threads, which inherit the policy; true when all of it is bound.

    The pool is shared memory: without a policy of its own a peer's first touch would place the page.
    """
    if not inheritance.memory_nodes:
        return False
    if calls is None:
        from shardd.engine import _native  # the engine is looked for by the supervisor, which says what is missing

        calls = _native
    shard, node = inheritance.shard, inheritance.memory_nodes[inheritance.shard]
    try:
        calls.memory_bind_thread(node)
        calls.memory_bind_memfd(inheritance.pool_fds[shard], inheritance.pool_bytes, node)
    except OSError as error:
        _log.warning("memory is not bound to NUMA node %d: %s", node, os.strerror(error.errno or 0))
        return False
    return True
