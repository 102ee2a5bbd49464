"""The Unix socket of a server: what is refused at the start, and what a killed server left there."""

from __future__ import annotations

import os
import socket
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from shardd.config.keys import settings_toml
from shardd.config.loader import ConfigError, load_settings
from shardd.config.schema import Unix
from shardd.runtime.networks import network_of
from shardd.security.backoff import site_of
from shardd.server.errors import StartupError
from shardd.server.unix_listener import UnixListener, open_unix_listener
from tests.support.other_user import STRANGER, as_other_user, needs_root, public_directory


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / "s.sock"


def unix(path: Path | str, mode: int = 0o600, group: str = "", users: dict[int, str] | None = None) -> Unix:
    return Unix(str(path), mode, group, users or {})


def opened(settings: Unix) -> UnixListener:
    listener = open_unix_listener(settings)
    assert listener is not None
    return listener


def refusal(settings: Unix) -> str:
    with pytest.raises(StartupError) as caught:
        open_unix_listener(settings)
    return str(caught.value)


def test_without_a_path_there_is_none() -> None:
    assert open_unix_listener(unix("")) is None


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_the_socket_has_its_mode_whatever_the_umask_is_and_goes_at_the_end(path: Path, mode: int) -> None:
    before = os.umask(0o077)
    try:
        listener = opened(unix(path, mode))
    finally:
        os.umask(before)
    assert stat.S_ISSOCK(path.lstat().st_mode) and stat.S_IMODE(path.lstat().st_mode) == mode
    listener.close()
    assert not path.exists()


def test_at_its_end_a_server_leaves_alone_what_another_one_has_made_at_its_path(path: Path) -> None:
    listener = opened(unix(path))
    path.unlink()
    path.write_text("not ours")
    listener.close()
    assert path.read_text() == "not ours"


def test_what_a_killed_server_left_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    assert path.exists()
    listener = opened(unix(path))
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    listener.close()


def test_a_socket_that_somebody_listens_on_is_left_alone(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        assert refusal(unix(path)) == f"unix.path: a server listens at {path} already"
        assert path.exists()


def test_a_path_has_one_server_even_before_it_listens(path: Path) -> None:
    first = opened(unix(path))
    path.unlink()
    assert refusal(unix(path)) == f"another shardd server holds the address {path}"
    first.close()
    opened(unix(path)).close()


def as_file(path: Path) -> None:
    path.write_text("precious")


def as_link(path: Path) -> None:
    target = path.with_name("target")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(target))
    path.symlink_to(target)


@pytest.mark.parametrize("make", [as_file, as_link, Path.mkdir, os.mkfifo])
def test_what_is_no_socket_is_not_removed(path: Path, make: Callable[[Path], None]) -> None:
    make(path)
    assert refusal(unix(path)) == f"unix.path: {path} is there, and no socket"
    assert path.is_symlink() or path.exists()


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o1777])
def test_a_directory_where_others_may_write_is_refused(path: Path, mode: int) -> None:
    path.parent.chmod(mode)
    assert refusal(unix(path)) == f"unix.path: other users may write to {path.parent}"
    path.parent.chmod(0o700)


def test_a_directory_above_where_others_may_write_is_refused_too(path: Path) -> None:
    inner = path.parent / "inner"
    inner.mkdir(mode=0o700)
    path.parent.chmod(0o722)
    assert refusal(unix(inner / "s")) == f"unix.path: other users may write to {path.parent}"
    path.parent.chmod(0o1777)  # there they cannot rename what is not theirs
    opened(unix(inner / "s")).close()
    path.parent.chmod(0o700)


def test_a_way_through_a_link_is_judged_where_it_leads(path: Path) -> None:
    open_for_all = path.parent / "open"
    open_for_all.mkdir()
    open_for_all.chmod(0o777)
    (path.parent / "link").symlink_to(open_for_all)
    assert refusal(unix(path.parent / "link" / "s")) == f"unix.path: other users may write to {open_for_all}"


@needs_root
def test_a_directory_of_another_user_is_refused(path: Path) -> None:
    os.chown(path.parent, STRANGER, STRANGER)
    assert refusal(unix(path)) == f"unix.path: {path.parent} belongs to another user (uid {STRANGER})"
    os.chown(path.parent, 0, 0)


@needs_root
def test_a_socket_of_another_user_is_not_removed(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as planted:
        planted.bind(str(path))
    os.chown(path, STRANGER, STRANGER)
    assert refusal(unix(path)) == f"unix.path: {path} belongs to another user (uid {STRANGER})"
    assert path.exists()


@needs_root
@pytest.mark.parametrize(
    ("mode", "group", "may"), [(0o600, "", False), (0o660, str(STRANGER), True), (0o666, "", True)]
)
def test_mode_and_group_say_who_may_connect(mode: int, group: str, may: bool) -> None:
    with public_directory() as directory:
        path = directory / "s.sock"
        listener = opened(unix(path, mode, group))

        def connects() -> bool:
            with socket.socket(socket.AF_UNIX) as client:
                try:
                    client.connect(str(path))
                except PermissionError:
                    return False
            return True

        assert as_other_user(connects) is may
        listener.close()


def test_a_missing_directory_a_missing_group_and_the_overflow_uid_are_refused(path: Path) -> None:
    missing = path.parent / "no" / "s"
    assert refusal(unix(missing)) == f"unix.path: {missing}: No such file or directory"
    assert refusal(unix(path, group="no such group")) == "unix.group: there is no group 'no such group' on this host"
    assert "65534 stands for every user" in refusal(unix(path, users={65_534: "alice"}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("path", "relative/path"),
        ("path", "/" + "a" * 107),
        ("mode", "rw"),
        ("mode", "0888"),
        ("mode", "07777"),
        ("users", "1000"),
        ("users", "alice:1000"),
        ("users", "-1:alice"),
        ("users", "4294967295:alice"),
        ("users", "1000:al"),
        ("users", "1000:alice,1000:robert"),
    ],
)
def test_values_that_mean_nothing_are_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"^unix\.{name} "):
        load_settings(None, {f"SHARDD_UNIX_{name.upper()}": value})


def test_file_and_environment_say_the_same(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text('[unix]\npath = "/run/s"\nmode = "0660"\ngroup = "7"\nusers = ["1000:alice", "0:robert"]\n')
    variables = {"PATH": "/run/s", "MODE": "660", "GROUP": "7", "USERS": "1000:alice, 0:robert"}
    settings = load_settings(file, {}).settings
    assert settings.unix == unix("/run/s", 0o660, "7", {1000: "alice", 0: "robert"})
    assert load_settings(None, {f"SHARDD_UNIX_{name}": value for name, value in variables.items()}).settings == settings
    told = tomllib.loads(settings_toml(settings))["unix"]
    assert told == tomllib.loads(file.read_text())["unix"]


def test_a_user_of_this_host_is_one_address() -> None:
    assert network_of("unix:1000:77") == network_of("unix:1000:78") == "unix:1000"
    assert site_of("unix:1000") == "unix:1000"
