"""The distribution `shardd-client` in an environment that has nothing else."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

from tests.support.packages import PROJECT
from tests.support.server import ONE_SHARD, Server

PROGRAM = """
import sys
before = set(sys.modules)  # a distribution's Python may bring a module of its own
from shardd.client import SyncClient, SyncConsumer, SyncProducer
with SyncClient(sys.argv[1]) as client:
    client.create_stream("s")
    client.create_topic("s", "t")
    with SyncProducer(client, "s", "t") as producer:
        producer.send_and_wait(b"hello")
    with SyncConsumer(client, "s", "t", name="c") as consumer:
        print(consumer.get().payload)
third = {name.partition(".")[0] for name in sys.modules.keys() - before} - sys.stdlib_module_names - {"shardd"}
print(sorted(name for name in third if not name.startswith("_")))
"""


def test_it_works_with_python_alone(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, PROJECT / "distribution/client_wheel.py", tmp_path], capture_output=True, text=True, check=True
    )
    wheel = built.stdout.strip()
    assert Path(wheel).name.startswith("shardd_client-") and wheel.endswith("-py3-none-any.whl")
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index", wheel]
    subprocess.run(pip, check=True)
    with Server(tmp_path / "data", ONE_SHARD) as server:
        address = f"shardd://iggy:iggy@{server.address}"
        done = subprocess.run([python, "-c", PROGRAM, address], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines() == ["b'hello'", "[]"], done.stderr


def test_the_wheel_of_a_platform_has_the_native_codec(tmp_path: Path) -> None:
    of_the_server = tmp_path / "shardd-0.1.0-cp311-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(of_the_server, "w") as archive:
        archive.write(PROJECT / "shardd/client/_codec.abi3.so", "shardd/client/_codec.abi3.so")
    script, into = str(PROJECT / "distribution/client_wheel.py"), str(tmp_path / "made")
    command = [sys.executable, script, into, str(of_the_server)]
    built = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert [Path(each).name.partition("-py3")[2] for each in built[:1]] == ["-none-any.whl"]
    assert built[1].endswith("-cp311-abi3-linux_x86_64.whl")
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index", built[1]]
    subprocess.run(pip, check=True)
    code = "from shardd.client import codec; print(codec.IS_NATIVE)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == "True", done.stdout + done.stderr
