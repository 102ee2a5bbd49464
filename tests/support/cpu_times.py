"""`PYTEST_ARGS="-p tests.support.cpu_times"`: which files of tests pay how many CPU seconds, at the end of a run.

Durations of pytest are wall time: beside other processes they tell how long a test has waited for a CPU. The seconds
here are those of the process of tests and of all processes that ended below it. A server of a module ends with the last
test of its file, so sums of files are true and those of single tests may not be.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator
from typing import Final

import pytest

_PROPERTY: Final = "cpu seconds"
_SHOWN: Final = 100  # files
OF_FILES: Final[defaultdict[str, float]] = defaultdict(float)
_SPENT_S: Final = pytest.StashKey[float]()


def cpu_s() -> float:
    """Of this process and of its children that ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[_SPENT_S] = cpu_s()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    now_s = cpu_s()
    if report.when == "teardown":  # what a test has spent since the one before it ended
        report.user_properties.append((_PROPERTY, now_s - item.config.stash[_SPENT_S]))
        item.config.stash[_SPENT_S] = now_s
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In the process that prints: with pytest-xdist the reports of all others come here, too."""
    if report.when == "teardown":
        for name, seconds in report.user_properties:
            if name == _PROPERTY and isinstance(seconds, float):
                OF_FILES[report.nodeid.partition("::")[0]] += seconds


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section(f"CPU seconds of files, {sum(OF_FILES.values()):.0f} of all")
    for file, seconds in sorted(OF_FILES.items(), key=lambda each: -each[1])[:_SHOWN]:
        terminalreporter.write_line(f"{seconds:8.1f} {file}")
