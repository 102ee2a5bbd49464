"""Requests that schemathesis generates from the description of the API, on a server of their own.

    python -m tests.doors.http_generated PROGRAM [--examples N]

Left out is what would end the login of the run, and logins, whose wrong passwords wait in a line."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.doors.http_server import HttpServer

LEFT_OUT: Final = ("/users/logout", "/users/login", "/users/{user}", "/users/{user}/password")
ENDLESS: Final = "/streams/{stream}/topics/{topic}/events"
CHECKS: Final = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--examples", type=int, default=60, help="of each endpoint")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, HttpServer(Path(directory) / "data") as server:
        root = server.root()
        root.done("POST", "/streams", {"name": "s"})
        root.done("POST", "/streams/s/topics", {"name": "t", "partitions_count": 2})
        host, port = server.http_address
        done = subprocess.run(
            [
                *(asked.program, "run", f"http://{host}:{port}/openapi.json"),
                *("-H", f"Authorization: Bearer {root.token}", "-n", str(asked.examples)),
                *(word for path in (*LEFT_OUT, ENDLESS) for word in ("--exclude-path", path)),
                *("--phases", "coverage,fuzzing", "--checks", ",".join(CHECKS)),
            ],
            cwd=directory,  # it keeps what it has found beside it
            check=False,
        )
        faults = [line for line in server.log().splitlines() if " ERROR " in line or "Traceback" in line]
        print("\n".join(faults))
        return done.returncode or bool(faults)


if __name__ == "__main__":
    sys.exit(main())
