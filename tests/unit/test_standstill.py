"""What excuses the silence of a worker: the judgement, and the watch that keeps count of it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from shardd.config.schema import Watchdog
from shardd.engine import _native
from shardd.server import thread_samples
from shardd.server.stall_watch import StallWatch
from shardd.server.standstill import Cause, ThreadSample, WorkerSample, excuse, stuck_threads
from shardd.server.thread_samples import sample_worker

LIMITS = Watchdog(device_stall_limit_ms=10_000, starvation_limit_ms=5_000)


def thread(state: str, *, cpu_s: float = 0.0, runs: int = 1, waits_in: str = "") -> ThreadSample:
    return ThreadSample(state, int(cpu_s * 1e9), runs, waits_in)


def worker(loop: ThreadSample, *others: ThreadSample, beat: int = 7, in_engine: bool = False) -> WorkerSample:
    return WorkerSample(loop, dict(enumerate(others)), beat, in_engine)


IDLE = worker(thread("S"))


@pytest.mark.parametrize("state", ["T", "t"])
def test_a_stopped_worker_has_no_excuse_even_beside_a_stuck_disk_thread(state: str) -> None:
    sample = worker(thread(state), thread("D"))
    assert excuse(sample, sample, 1.0) is None


def test_a_worker_that_sleeps_for_a_reason_of_its_own_has_no_excuse() -> None:
    for waits_in in ("", "futex_wait_queue", "hrtimer_nanosleep", "do_epoll_wait"):
        sample = worker(thread("S", waits_in=waits_in), thread("S", waits_in="futex_wait_queue"))
        assert excuse(sample, sample, 1.0) is None


def test_a_worker_that_burns_cpu_has_no_excuse_for_it() -> None:
    assert excuse(worker(thread("R")), worker(thread("R", cpu_s=1.0)), 1.0) is None


def test_a_loop_in_uninterruptible_sleep_waits_for_the_device() -> None:
    assert excuse(IDLE, worker(thread("D", waits_in="percpu_rwsem_wait")), 1.5) == (Cause.DEVICE, 1.5)


def test_a_loop_that_sleeps_inside_one_call_of_the_engine_waits_for_a_file() -> None:
    """As on a file system in user space, which lets it sleep interruptibly."""
    before = worker(thread("S"), in_engine=True)
    assert excuse(before, before, 1.0) == (Cause.DEVICE, 1.0)
    locked = worker(thread("S", waits_in="futex_wait_queue"), in_engine=True)
    assert excuse(locked, locked, 1.0) is None
    assert excuse(before, worker(thread("S"), in_engine=True, beat=8), 1.0) is None
    assert excuse(before, worker(thread("S"), in_engine=False), 1.0) is None


def test_a_loop_that_sleeps_in_a_file_system_in_user_space_or_on_the_network_waits_for_the_device() -> None:
    for waits_in in ("request_wait_answer", "fuse_dev_do_read", "rpc_wait_bit_killable"):
        sample = worker(thread("S", waits_in=waits_in))
        assert excuse(sample, sample, 1.0) == (Cause.DEVICE, 1.0)


def test_a_disk_thread_that_was_in_one_call_all_the_time_excuses_the_loop() -> None:
    before = worker(thread("S"), thread("D", runs=4))
    assert excuse(before, worker(thread("S"), thread("D", runs=4)), 1.0) == (Cause.DEVICE, 1.0)


def test_a_disk_thread_that_has_run_meanwhile_excuses_nobody() -> None:
    before = worker(thread("S"), thread("D", runs=4))
    for after in (thread("D", runs=5), thread("S", runs=4), thread("R", runs=4)):
        assert excuse(before, worker(thread("S"), after), 1.0) is None
        assert not stuck_threads(before, worker(thread("S"), after))
    assert not stuck_threads(worker(thread("S")), worker(thread("S"), thread("D"))), "it is new"


def test_what_a_runnable_loop_did_not_get_of_its_cpu_is_excused() -> None:
    cause, seconds = excuse(worker(thread("R")), worker(thread("R", cpu_s=0.3)), 1.0) or (None, 0)
    assert cause is Cause.CPU
    assert seconds == pytest.approx(0.7)


def test_a_loop_that_waits_for_a_thread_that_gets_no_cpu_is_excused() -> None:
    before = worker(thread("S"), thread("R", cpu_s=5.0))
    assert excuse(before, worker(thread("S"), thread("R", cpu_s=5.05)), 1.0) == (Cause.CPU, 1.0)
    assert excuse(before, worker(thread("S"), thread("R", cpu_s=5.5)), 1.0) is None


class Run:
    """A watch over a worker whose samples the test gives; looks every 0.1 s, as the supervisor does."""

    def __init__(self, limits: Watchdog = LIMITS) -> None:
        self.sample: WorkerSample | None = IDLE
        self.now = 100.0
        self.heard_at = 100.0
        self.forgiven_s = 0.0
        self.watch = StallWatch(0, limits, lambda everything: self.sample)

    def silent(self, seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            self.forgiven_s += self.watch.look(self.now, self.now - self.heard_at, starting=False)

    def beat(self, seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            self.heard_at = self.now
            self.silent(0.1)

    @property
    def blamed_s(self) -> float:
        return self.now - self.heard_at - self.forgiven_s


def test_a_device_stall_is_forgiven_told_and_counted_until_it_ends() -> None:
    run = Run()
    run.beat(2)
    run.sample = worker(thread("D"))
    run.silent(6)
    assert run.blamed_s < 0.5
    standing = run.watch.standing
    assert standing is not None
    assert (standing.cause, run.watch.is_excused(run.now)) == ("device", True)
    run.sample = IDLE
    run.beat(0.2)
    assert run.watch.standing is None
    assert run.watch.stalls == {Cause.DEVICE: 1, Cause.CPU: 0}
    assert run.watch.stalled_s[Cause.DEVICE] == pytest.approx(6, abs=0.7)


@pytest.mark.parametrize(("state", "limit_s"), [("D", 10), ("R", 5)])
def test_beyond_the_setting_nothing_is_forgiven(state: str, limit_s: float) -> None:
    run = Run()
    run.beat(2)
    run.sample = worker(thread(state))
    run.silent(limit_s + 4)
    assert run.forgiven_s == pytest.approx(limit_s, abs=0.6)
    assert not run.watch.is_excused(run.now)


def test_with_a_limit_of_0_a_stall_is_no_excuse() -> None:
    run = Run(Watchdog(device_stall_limit_ms=0, starvation_limit_ms=0))
    run.beat(2)
    run.sample = worker(thread("D"))
    run.silent(3)
    assert run.forgiven_s == 0.0


def test_a_stop_inside_a_stall_is_blamed_from_then_on() -> None:
    run = Run()
    run.beat(2)
    run.sample = worker(thread("D"))
    run.silent(4)
    before = run.blamed_s
    run.sample = worker(thread("T"))
    run.silent(3)
    assert run.blamed_s - before == pytest.approx(3, abs=0.2)


def test_a_disk_thread_that_hangs_is_told_while_the_loop_goes_on() -> None:
    run = Run()
    run.sample = worker(thread("S"), thread("D", runs=3))
    run.beat(3)
    assert run.watch.standing is not None
    assert run.watch.standing.cause == "device"
    run.sample = worker(thread("S"), thread("S", runs=4))
    run.beat(2)
    assert run.watch.standing is None


def test_a_worker_that_loads_its_modules_is_not_said_to_stand_still() -> None:
    watch = StallWatch(0, LIMITS, lambda everything: worker(thread("R")))
    for step in range(1, 60):
        watch.look(100 + step / 10, step / 10, starting=True)
    assert watch.standing is None


BURNING = (
    "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); print(flush=True)\n"
    "while True: pass"
)


@contextlib.contextmanager
def burning() -> Iterator[tuple[int, int]]:
    """A process whose loop computes and whose other thread sleeps, and what a server shares."""
    shared = os.memfd_create("shardd-test")
    _native.shared_region_format(shared, 1)
    process = subprocess.Popen([sys.executable, "-c", BURNING], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid, shared
    finally:
        process.kill()
        process.communicate(timeout=10)
        os.close(shared)


def test_the_threads_of_a_real_process_are_read() -> None:
    with burning() as (pid, shared):
        first = sample_worker(pid, shared, 0, everything=True)
        deadline = time.monotonic() + 20
        while True:
            second = sample_worker(pid, shared, 0, everything=True)
            assert first is not None
            assert second is not None
            states = [second.loop.state, *(each.state for each in second.others.values())]
            if second.loop.cpu_ns > first.loop.cpu_ns and states == ["R", "S"]:
                break
            assert time.monotonic() < deadline, states
        assert (second.beat, second.in_engine) == (0, False)


def test_files_of_threads_are_not_read_below_their_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel would keep them with it, and waiting for its end would cost more CPU than all looks."""
    read, paths = thread_samples._read, list[str]()

    def noted(path: str) -> bytes:
        paths.append(path)
        return read(path)

    monkeypatch.setattr(thread_samples, "_read", noted)
    with burning() as (pid, shared):
        sample = sample_worker(pid, shared, 0, everything=True)
    assert sample is not None and sample.others
    assert {path.rpartition("/")[0] for path in paths} == {f"/proc/{each}" for each in (pid, *sample.others)}


def test_the_ticks_of_a_thread_are_its_own_where_the_kernel_has_no_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    read = thread_samples._read

    def without_statistics(path: str) -> bytes:
        if path.endswith("/schedstat"):
            raise FileNotFoundError(path)
        return read(path)

    monkeypatch.setattr(thread_samples, "_read", without_statistics)
    with burning() as (pid, shared):
        deadline = time.monotonic() + 20
        while True:
            sample = sample_worker(pid, shared, 0, everything=True)
            assert sample is not None
            (sleeping,) = sample.others.values()
            if sample.loop.cpu_ns > sleeping.cpu_ns + 300_000_000:
                break
            assert time.monotonic() < deadline, sample


def test_a_process_that_is_gone_has_no_sample() -> None:
    shared = os.memfd_create("shardd-test")
    _native.shared_region_format(shared, 1)
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(20)
    try:
        assert sample_worker(process.pid, shared, 0, everything=True) is None
    finally:
        os.close(shared)
