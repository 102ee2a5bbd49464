"""Requests that schemathesis generates from the description of the API, on a server of their own.

    python -m tests.doors.http_generated [--examples N]

Left out is what would end the login of the run, and logins, whose wrong passwords wait in a line."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.doors.http_server import HttpServer
from tests.support.venvs import schemathesis

LEFT_OUT: Final = ("/users/logout", "/users/login", "/users/{user}", "/users/{user}/password")
ENDLESS: Final = "/streams/{stream}/topics/{topic}/events"
TIMEOUT_S: Final = 7200
CHECKS: Final = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
)  # fmt: skip


def generated(examples: int) -> tuple[int, str]:
    """Status of the run, 1 also when the server has told of a fault, and all that was said. `examples`: of each
    endpoint."""
    with tempfile.TemporaryDirectory() as directory, HttpServer(Path(directory) / "data") as server:
        root = server.root()
        root.done("POST", "/streams", {"name": "s"})
        root.done("POST", "/streams/s/topics", {"name": "t", "partitions_count": 2})
        host, port = server.http_address
        done = subprocess.run(
            [
                *(str(schemathesis()), "run", f"http://{host}:{port}/openapi.json"),
                *("-H", f"Authorization: Bearer {root.token}", "-n", str(examples)),
                *(word for path in (*LEFT_OUT, ENDLESS) for word in ("--exclude-path", path)),
                *("--phases", "coverage,fuzzing", "--checks", ",".join(CHECKS)),
            ],
            cwd=directory,  # it keeps what it has found beside it
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
        )
        faults = [line for line in server.log().splitlines() if " ERROR " in line or "Traceback" in line]
    return done.returncode or bool(faults), "\n".join((done.stdout, *faults))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=60, help="of each endpoint")
    status, said = generated(parser.parse_args().examples)
    print(said)
    return status


if __name__ == "__main__":
    sys.exit(main())
