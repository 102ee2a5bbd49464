"""CPU seconds of files of tests, as `-p tests.support.cpu_times` prints them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SPENT_S = 0.3
BUSY = f"""
import subprocess, sys, time

LOOP = "import time\\nwhile time.process_time() < {SPENT_S}: pass"

def test_busy_child():
    subprocess.run([sys.executable, "-c", LOOP], check=True)
"""


def test_child_of_a_test_is_counted_for_its_file(tmp_path: Path) -> None:
    for name, text in (("busy", BUSY), ("idle", "def test_nothing(): pass")):
        (tmp_path / f"test_{name}.py").write_text(text)
    words = ["-m", "pytest", "-q", "-p", "tests.support.cpu_times", "-p", "no:cacheprovider", "--numprocesses", "1"]
    ran = subprocess.run(
        [sys.executable, *words, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    seconds = {name: float(spent) for spent, name in re.findall(r"^ +([\d.]+) \S*test_(\w+)\.py$", ran.stdout, re.M)}
    assert seconds["busy"] >= SPENT_S > seconds["idle"], ran.stdout
