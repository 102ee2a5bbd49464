"""`python -m tests.support.again_alone ARGUMENTS`: pytest, and what failed once more, alone.

Six processes of tests on two cores can starve a server for seconds, and a test that waits for one then fails although
nothing is wrong. Such a test runs a second time, with nothing beside it, and that run decides. Both runs are printed.
Not so for a loss, a flipped bit or a fuzz finding: where chance decides what is found, a failure is a finding. And when
many fail it is not the machine. Exit status as of pytest.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

FINDINGS: Final = tuple(
    f"tests/{name}/" for name in ("corruption", "crash", "fuzz", "golden", "power", "property", "sim")
)
FILES_AGAIN_AT_MOST: Final = 12  # of more than 500: where one server starves, all tests of a file may fail
_TESTS_FAILED: Final = 1
# A test that goes on after its timeout (hypothesis runs a failed example again) ends together with its process.
_ENDS: Final = ("-o", "faulthandler_timeout=900", "-o", "faulthandler_exit_on_timeout=true")
_ROOT: Final = Path(__file__).parents[2]


def worth_another_run(failed: Sequence[str]) -> bool:
    """Whether each of these tests (node ids) may have failed because of what ran beside it."""
    files = {name.partition("::")[0] for name in failed}
    return 0 < len(files) <= FILES_AGAIN_AT_MOST and not any(name.startswith(FINDINGS) for name in files)


def run(arguments: Sequence[str], root: Path = _ROOT) -> int:
    with tempfile.TemporaryDirectory() as cache:
        pytest = [sys.executable, "-m", "pytest", "-q", "-o", f"cache_dir={cache}", *_ENDS]
        status = subprocess.run([*pytest, *arguments], cwd=root, check=False).returncode
        record = Path(cache, "v/cache/lastfailed")
        failed = sorted(json.loads(record.read_bytes())) if status == _TESTS_FAILED and record.exists() else []
        if not worth_another_run(failed):
            return status
        print(f"== failed beside the others, now alone: {' '.join(failed)}", flush=True)
        return subprocess.run([*pytest, "-rfE", *failed], cwd=root, check=False).returncode


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
