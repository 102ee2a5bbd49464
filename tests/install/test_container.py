"""What the Containerfile says is true of the server: its command serves, its health check tells, its signal stops."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path

from tests.support.packages import PROJECT

TIMEOUT_S = 60.0
TEXT = (PROJECT / "distribution/container/Containerfile").read_text().replace("\\\n", "")
SHARDD = [sys.executable, "-P", "-m", "shardd"]


def words(instruction: str) -> list[str]:
    """The list behind the last one of its kind."""
    found = re.findall(rf"^{instruction}\b.*?(\[.*\])$", TEXT, re.MULTILINE)
    return [str(each) for each in json.loads(found[-1])]


def said(instruction: str) -> str:
    found = re.findall(rf"^{instruction} (.*)$", TEXT, re.MULTILINE)
    return str(found[-1])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def test_it_runs_without_root_and_names_what_is_there() -> None:
    user = said("USER").partition(":")[0]
    assert user.isdecimal() and int(user) > 0
    assert f"-o {user}" in TEXT and said("VOLUME") in said("RUN install")
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"\)\[(\w+)\]", TEXT)) <= extras.keys()
    assert all((PROJECT / source).exists() for source in re.findall(r"^COPY ([\w./]+) ", TEXT, re.MULTILINE))


def test_its_command_serves_and_its_health_check_tells(tmp_path: Path) -> None:
    port, ready = free_port(), tmp_path / "log"
    environment = dict(each.split("=", 1) for each in said("ENV").split()) | {"HOME": str(tmp_path)}
    assert environment["SHARDD_TCP_ADDRESS"].endswith(f":{said('EXPOSE')}")
    environment["SHARDD_TCP_ADDRESS"] = environment["SHARDD_TCP_ADDRESS"].replace(said("EXPOSE"), str(port))
    environment["PATH"] = os.environ["PATH"]
    assert words("ENTRYPOINT") == ["shardd"] == words("HEALTHCHECK")[:1]
    places = {"/etc/shardd/server.toml": str(PROJECT / "config/server.toml"), "/var/lib/shardd": str(tmp_path / "data")}
    command = [*SHARDD, *(places.get(each, each) for each in words("CMD"))]
    check = [*SHARDD, *words("HEALTHCHECK")[1:]]
    with ready.open("wb") as log, subprocess.Popen(command, env=environment, stdout=log, stderr=log) as serving:
        try:
            deadline = time.monotonic() + TIMEOUT_S
            while ", ready" not in ready.read_text():
                assert serving.poll() is None and time.monotonic() < deadline, ready.read_text()
                time.sleep(0.05)
            assert subprocess.run(check, env=environment, timeout=TIMEOUT_S).returncode == 0
            serving.send_signal(getattr(signal, said("STOPSIGNAL")))
            assert serving.wait(TIMEOUT_S) == 0
        finally:
            serving.kill()
    assert subprocess.run(check, env=environment, timeout=TIMEOUT_S, capture_output=True).returncode == 1
