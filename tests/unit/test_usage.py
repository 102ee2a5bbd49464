"""What the kernel tells of processes and the machine: it must agree with psutil, which reads the same."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from shardd.runtime.usage import MachineUsage, ProcessUsage, memory_bytes


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_a_process_uses_what_psutil_says() -> None:
    watched, other = ProcessUsage(os.getpid()), psutil.Process()
    other.cpu_percent()
    burn(0.2)
    usage, cpu_percent, disk = watched.read(), other.cpu_percent(), other.io_counters()
    assert usage.cpu_percent > 0 and usage.cpu_percent == pytest.approx(cpu_percent, rel=0.3)
    assert usage.memory_bytes == pytest.approx(other.memory_info().rss, rel=0.1)
    assert usage.threads_count == other.num_threads()
    assert (usage.read_bytes, usage.written_bytes) == (disk.read_bytes, disk.write_bytes)


def test_cpu_time_counts_from_the_last_question() -> None:
    watched = ProcessUsage(os.getpid())
    burn(0.2)
    busy = watched.read().cpu_percent
    time.sleep(0.2)
    assert watched.read().cpu_percent < busy


def test_a_name_with_brackets_does_not_matter() -> None:
    code = "import setproctitle; setproctitle.setproctitle('a) b (c'); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        assert ProcessUsage(process.pid).read().threads_count == 1
        process.stdin.write(b"\n")


def test_a_process_that_is_gone_is_an_error() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    watched = ProcessUsage(process.pid)
    process.communicate(b"\n")
    with pytest.raises(OSError):
        watched.read()
    with pytest.raises(OSError):
        ProcessUsage(process.pid)


def test_the_machine_is_busy_in_percent() -> None:
    machine = MachineUsage()
    burn(0.2)
    assert 0 < machine.cpu_percent() <= 100


def test_memory_is_what_psutil_says() -> None:
    total, available = memory_bytes()
    assert total == psutil.virtual_memory().total
    assert 0 < available <= total
