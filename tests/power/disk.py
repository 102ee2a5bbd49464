"""A mounted file system that forgets what was not synced (forgetful.c), and the power cut that shows it."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from shardd.client.closing import Closing
from tests.support.built import make

ROOT: Final = Path(__file__).parents[2]
PROGRAM: Final = ROOT / "native" / "build" / "power" / "forgetful"
ANSWER_TIMEOUT_S: Final = 60.0


@functools.cache
def why_not() -> str | None:
    """None when file systems can be mounted here, else the reason. Builds the program and tries it."""
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse cannot be used here (that needs the device and root)"
    built = make(ROOT / "native", "power")
    if built.returncode:
        return f"tests/power/forgetful.c was not built: {built.stderr.strip()[-500:]}"
    with tempfile.TemporaryDirectory() as directory:
        try:
            Disk(Path(directory, "source"), Path(directory, "mount")).close()
        except RuntimeError as problem:
            return f"a file system cannot be mounted here: {problem}"
    return None


class Disk(Closing):
    """`source`, durable at first, is mounted at `mount` (made when missing); what is not synced there dies in a `cut`.

    `names`: strict or ext4 (store.h). `sync_delay_us`: the median time that a sync takes. Context manager: unmounts.
    RuntimeError with the program's words when something does not work, TimeoutError when it says nothing.
    """

    def __init__(
        self, source: Path, mount: Path, *, names: str = "strict", sync_delay_us: int = 0, seed: int = 1
    ) -> None:
        source.mkdir(parents=True, exist_ok=True)
        mount.mkdir(parents=True, exist_ok=True)
        self.mount = mount
        words = [str(PROGRAM), str(source), str(mount), "--names", names]
        words += ["--sync-delay-us", str(sync_delay_us), "--seed", str(seed)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._unread = b""
        try:
            self._expect("ready")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Unmounts; open files on it get errors from then on."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(ANSWER_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(ANSWER_TIMEOUT_S)
            subprocess.run(["umount", "-l", str(self.mount)], check=False, capture_output=True)
        assert self._process.stdout is not None
        self._process.stdout.close()

    @contextlib.contextmanager
    def stand_still(self) -> Iterator[None]:
        """Nothing is answered: whoever asks sleeps, interruptibly (state S) as the kernel has it for FUSE."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def lie(self) -> None:
        """Syncs succeed from now on and do nothing."""
        self._command("lie")
        self._expect("ok")

    def fail_syncs(self, count: int) -> None:
        """The next `count` syncs fail with EIO, and what they should have written counts as clean."""
        self._command(f"fail {count}")
        self._expect("ok")

    def arm(self, kinds: str, count: int, seed: int, survivors: Path) -> None:
        """The power goes before the `count`-th operation of these kinds (letters of forgetful.c): see `went`."""
        survivors.mkdir(parents=True)
        self._command(f"arm {kinds} {count} {seed} {survivors}")
        self._expect("ok")

    def went(self, timeout_s: float) -> dict[str, int] | None:
        """What the armed cut has counted, None when it has not come after `timeout_s`."""
        line = self._line(timeout_s)
        return None if line is None else _counts(line)

    def cut(self, seed: int, survivors: Path) -> dict[str, int]:
        """The power goes now; `survivors` (new) gets what the device has. Returns the counts of forgetful.c."""
        survivors.mkdir(parents=True, exist_ok=True)
        self._command(f"cut {seed} {survivors}")
        line = self._line(ANSWER_TIMEOUT_S)
        if line is None:
            raise TimeoutError("the disk does not answer")
        if line.startswith("cut ") or not line.startswith("error the power is off"):
            # an armed cut may have come first: then a refusal of this one follows
            return _counts(line)
        raise RuntimeError(line)

    def _command(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode() + b"\n")
        self._process.stdin.flush()

    def _expect(self, word: str) -> None:
        line = self._line(ANSWER_TIMEOUT_S)
        if line != word:
            raise RuntimeError(f"the disk says {line!r} instead of {word!r}")

    def _line(self, timeout_s: float) -> str | None:
        assert self._process.stdout is not None
        file, end = self._process.stdout.fileno(), time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            ready, _, _ = select.select([file], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                return None
            data = os.read(file, 65536)
            if not data:
                raise RuntimeError(f"the disk ended: {self._unread!r}, status {self._process.wait(ANSWER_TIMEOUT_S)}")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()


def _counts(line: str) -> dict[str, int]:
    kind, *pairs = line.split()
    if kind != "cut":
        raise RuntimeError(f"the disk says {line!r}")
    return {name: int(number) for name, _, number in (pair.partition("=") for pair in pairs)}
