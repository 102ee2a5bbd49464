"""Standard output and error of a command: all output passes one writer, which writes all of it or says why not."""

from __future__ import annotations

import errno
import gc
import io
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141


class OutputError(Exception):
    """The standard output takes nothing more. Not an OSError: typer would end with a status of its own."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"the output cannot be written: {error.strerror}")
        self.status = EXIT_BROKEN_PIPE if error.errno == errno.EPIPE else EXIT_FAILED


class InterruptedExit(SystemExit):
    """The end of a command that was interrupted and has said so."""

    def __init__(self) -> None:
        super().__init__(EXIT_INTERRUPTED)


class _Descriptor(io.RawIOBase):
    """A descriptor below a `BufferedWriter`, which repeats short writes. It waits where the other side is slow, and
    after the first error it swallows what comes: the error has been raised once."""

    def __init__(self, number: int, *, raises: bool) -> None:
        self._number, self._raises, self._failed = number, raises, False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def write(self, data: Buffer) -> int:
        view = memoryview(data)
        while not self._failed:
            try:
                return os.write(self._number, view)
            except BlockingIOError:
                self._wait()
            except OSError as error:
                self._failed = True
                if self._raises:
                    raise OutputError(error) from None
        return view.nbytes

    def _wait(self) -> None:
        """The descriptor may be shared with a program that has made it non-blocking."""
        import select

        waiting = select.poll()
        waiting.register(self._number, select.POLLOUT)
        waiting.poll()


def _text(number: int, *, raises: bool, line_buffering: bool) -> io.TextIOWrapper:
    writer = io.BufferedWriter(_Descriptor(number, raises=raises), 1 << 16)
    return io.TextIOWrapper(writer, "utf-8", "backslashreplace", line_buffering=line_buffering)


def install() -> None:
    """A descriptor that is closed gets /dev/null, so that no socket takes its number; what is written to a closed
    standard output is an error."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    at_once = bool(os.environ.get("PYTHONUNBUFFERED")) or os.isatty(1)
    sys.stdout = _text(1, raises=True, line_buffering=at_once)
    sys.stderr = _text(2, raises=False, line_buffering=True)


def out(data: bytes) -> None:
    """All of it, at once. OutputError."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def carried_out(work: Callable[[], None], *, says: bool = True) -> None:
    """Ends the process with the status of the command, when all that it wrote is written. `says`: an interruption
    is told; a completion while a user types says nothing."""
    status: int | str | None = 0
    is_told = not says
    try:
        install()
        try:
            work()
        except SystemExit as ended:
            status, is_told = ended.code, is_told or isinstance(ended, InterruptedExit)
        except UnicodeEncodeError as error:
            status = _undecodable(error)
        except OSError as error:
            status = _unusable_path(error)
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = status or EXIT_INTERRUPTED
    except OutputError as error:
        if error.status != EXIT_BROKEN_PIPE:
            print(f"shardd: {error}", file=sys.stderr)
        status = status or error.status
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing is left to interrupt
    if status == EXIT_INTERRUPTED and not is_told:
        print("shardd: interrupted", file=sys.stderr)
    gc.freeze()  # the interpreter would look for garbage among all that was imported, twice, before it ends
    sys.exit(status)


def awaited(work: Coroutine[Any, Any, T]) -> T:
    """On a loop of its own."""
    import asyncio

    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        _hush()
        raise
    finally:
        with suppress(RuntimeError):  # what ends in there may need the loop, which is closed
            work.close()  # interrupted before it began


def _hush() -> None:
    """The process ends: asyncio was interrupted itself, and its complaints about half-done tasks would hide the
    sentence of the command."""
    import logging
    import warnings

    warnings.simplefilter("ignore", RuntimeWarning)
    logging.getLogger("asyncio").disabled = True


def _undecodable(error: UnicodeEncodeError) -> int:
    """An argument of the shell that is no UTF-8 came as far as the encoder."""
    if not any(word != word.encode("utf-8", "replace").decode() for word in sys.argv):
        raise error
    print("shardd: an argument is not UTF-8; names and values of the server are", file=sys.stderr)
    return EXIT_USAGE


def _lies_below(path: str, given: str) -> bool:
    return path == given or Path(path).absolute().is_relative_to(Path(given).absolute())


def _unusable_path(error: OSError) -> int:
    """A path that was given, and that the system does not take. What goes wrong with other files is a fault of ours."""
    path = "" if error.filename is None else os.fsdecode(error.filename)
    given = [part for word in sys.argv[1:] for part in (word, word.partition("=")[2]) if part]
    if not path or (error.errno != errno.ENAMETOOLONG and not any(_lies_below(path, each) for each in given)):
        raise error
    shown = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in path)
    print(f"shardd: {shown}: {error.strerror}", file=sys.stderr)
    return EXIT_FAILED
