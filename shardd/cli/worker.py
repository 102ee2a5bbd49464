"""Entry point of a worker process: `python -m shardd.cli.worker <descriptor>`; only the supervisor starts it."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys

import setproctitle

from shardd.observability.logs import set_up_logs
from shardd.observability.traces import end_traces, set_up_traces
from shardd.runtime.audit_file import set_up_audit
from shardd.runtime.control_messages import WorkerMessage, encode_message
from shardd.runtime.inheritance import WorkerInheritance, read_inheritance
from shardd.runtime.supervised import die_with, ignore_signals
from shardd.worker.memory_binding import bind_memory

_log = logging.getLogger(__name__)


def pin(inheritance: WorkerInheritance) -> None:
    try:
        os.sched_setaffinity(0, {inheritance.cpu})
    except OSError as error:  # the cpuset shrank since the server started: slower, but it works
        _log.error("cannot run on CPU %d alone: %s", inheritance.cpu, error.strerror)


def main() -> None:
    gc.disable()  # until `serve` has imported everything: nothing of it is garbage
    ignore_signals()
    work(int(sys.argv[1]))


def work(inheritance_fd: int) -> None:
    """The whole life of a worker, which ends the process."""
    inheritance = read_inheritance(inheritance_fd, WorkerInheritance)
    die_with(inheritance.supervisor_pid)
    source = f"shard-{inheritance.shard}"
    set_up_logs(source, inheritance.settings.system.logging.level, inheritance.settings.system.logging.format)
    set_up_audit(inheritance.settings.system.logging.audit_file, source)
    set_up_traces(inheritance.settings.telemetry, source)
    setproctitle.setproctitle(f"shardd: shard {inheritance.shard}")
    pin(inheritance)
    bind_memory(inheritance)
    status = serve(inheritance)
    end_traces()
    logging.shutdown()
    os._exit(status)  # whatever a helper thread waits for must not delay the successor


def import_all() -> None:
    """What `serve` needs, and what decodes what it is told."""
    from shardd.dispatch.dialects import Dialects
    from shardd.dispatch.door.endpoint import Doors
    from shardd.worker.worker import run

    del run, Dialects, Doors


def import_for_tokens() -> None:
    """What those need that sign and verify access tokens."""
    with contextlib.suppress(ImportError):  # whoever needs it tells of it
        import jwt

        del jwt


def serve(inheritance: WorkerInheritance) -> int:
    """Exit status. A metadata log that is refused is told to the supervisor: starting again would not help."""
    from shardd.dispatch.dialects import Dialects
    from shardd.dispatch.door.endpoint import Doors
    from shardd.metadata.errors import LogError
    from shardd.worker.worker import run

    gc.freeze()  # modules stay: no collection stops the loop to look at them, which takes 9 ms of CPU
    gc.enable()
    try:
        return run(inheritance, Dialects, Doors)
    except LogError as error:
        with contextlib.suppress(OSError):
            os.write(inheritance.control_fd, encode_message(WorkerMessage(fatal=str(error))))
    except Exception:
        _log.exception("the worker ends")
    return 1


if __name__ == "__main__":
    main()
