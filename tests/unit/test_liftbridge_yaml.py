"""Settings of a Liftbridge server as settings of this one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardd.config.keys import KEYS_BY_PATH
from shardd.config.liftbridge_yaml import (
    KNOWN,
    SILENT,
    WITHOUT_EFFECT,
    LiftbridgeConfigError,
    Translated,
    read_yaml,
    translate,
)
from shardd.config.loader import load_settings


def resolve(host: str) -> str:
    known = {"127.0.0.1": "127.0.0.1", "localhost": "127.0.0.1", "lift.example": "192.0.2.7", "10.0.0.1": "10.0.0.1"}
    if host not in known:
        raise OSError(2, "unknown")
    return known[host]


def translated(**given: object) -> Translated:
    return translate({name.replace("__", "."): value for name, value in given.items()}, resolve)


def values(**given: object) -> dict[str, object]:
    return translated(**given).values


def test_a_file_may_be_nested_dotted_or_both(tmp_path: Path) -> None:
    path = tmp_path / "liftbridge.yaml"
    path.write_text(
        "listen: 127.0.0.1:9293\ncursors:\n  stream.auto.pause.time: 0\n  stream.partitions: 1\n"
        "streams:\n  retention:\n    max:\n      age: 24h\n  Segment.Max.Bytes: 1048576\n"
        "clustering.server.id: me\nnats:\n  servers:\n    - nats://a:4222\n"
    )
    assert read_yaml(path) == {
        "listen": "127.0.0.1:9293",
        "cursors.stream.auto.pause.time": 0,
        "cursors.stream.partitions": 1,
        "streams.retention.max.age": "24h",
        "streams.segment.max.bytes": 1048576,
        "clustering.server.id": "me",
        "nats.servers": ["nats://a:4222"],
    }


@pytest.mark.parametrize(
    "text",
    ["a: [", "- one", "just text", "!!python/object/apply:os.system ['true']", "a: \xff"],
)
def test_a_file_that_holds_no_settings_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "liftbridge.yaml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(LiftbridgeConfigError, match=str(path)):
        read_yaml(path)
    with pytest.raises(LiftbridgeConfigError, match="No such file"):
        read_yaml(tmp_path / "nothing")


def test_aliases_that_multiply_cost_nothing(tmp_path: Path) -> None:
    path = tmp_path / "liftbridge.yaml"
    lines = ["a0: &a0 {x0: 1, x1: 1, x2: 1, x3: 1, x4: 1, x5: 1, x6: 1, x7: 1, x8: 1, x9: 1}"]
    for n in range(1, 12):
        lines.append(f"a{n}: &a{n} {{{', '.join(f'y{k}: *a{n - 1}' for k in range(10))}}}")
    path.write_text("\n".join(lines))
    assert len(read_yaml(path)) == 1_000


@pytest.mark.parametrize(
    ("given", "bound", "told"),
    [
        ({}, "127.0.0.1:9292", ""),
        ({"listen": "localhost:9293"}, "127.0.0.1:9293", "localhost:9293"),
        ({"listen": "127.0.0.1:9293"}, "127.0.0.1:9293", ""),
        ({"host": "lift.example"}, "192.0.2.7:9292", "lift.example:9292"),
        ({"port": 9300}, "127.0.0.1:9300", ""),
        ({"listen": "0.0.0.0:9293", "host": "lift.example", "port": 80}, "0.0.0.0:9293", "lift.example:80"),
        ({"listen": ":9293", "host": "lift.example"}, "0.0.0.0:9293", "lift.example:9293"),
        ({"listen": "10.0.0.1:1"}, "10.0.0.1:1", ""),
        ({"listen": "[::1]:9292", "host": "localhost"}, "[::1]:9292", "localhost:9292"),
    ],
)
def test_addresses_are_bound_and_told_as_liftbridge_does(given: dict[str, object], bound: str, told: str) -> None:
    found = values(**given)
    assert (found["liftbridge.address"], found["liftbridge.advertised_address"]) == (bound, told)


def test_a_wildcard_without_a_host_is_told_as_the_name_of_this_machine() -> None:
    found = translated(listen="0.0.0.0:9292")
    assert "host is not set" in found.warnings[0]
    assert str(found.values["liftbridge.advertised_address"]).endswith(":9292")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("168h", "604800000 ms"),
        ("1h30m", "5400000 ms"),
        ("1.5s", "1500 ms"),
        ("200us", "1 ms"),
        ("500ns", "0 ms"),
        ("-5m", "0 ms"),
        ("0", "0 ms"),
        (0, "0 ms"),
        (1, "1 ms"),
        (5_000_000_000, "5000 ms"),
    ],
)
def test_durations_are_those_of_go(text: object, wanted: str) -> None:
    assert values(streams__retention__max__age=text)["liftbridge.streams.retention_age"] == wanted


def test_tls_needs_both_files_and_clients_a_certificate(tmp_path: Path) -> None:
    found = values(
        tls__cert="c.pem",
        tls__key=str(tmp_path / "k.pem"),
        tls__client__auth__enabled=True,
        tls__client__auth__ca="/ca",
    )
    assert found["liftbridge.tls.enabled"] is True and found["liftbridge.tls.client_ca_file"] == "/ca"
    assert found["liftbridge.tls.cert_file"] == str(Path("c.pem").absolute())
    for wrong in ({"tls__cert": "c"}, {"tls__client__auth__enabled": True}):
        with pytest.raises(LiftbridgeConfigError):
            translated(**wrong)


def test_nats_is_asked_unless_it_is_built_in() -> None:
    assert values()["liftbridge.nats.servers"] == ["nats://localhost:4222"]
    assert values(nats__servers="a:1,tls://b:2")["liftbridge.nats.servers"] == ["nats://a:1", "tls://b:2"]
    found = translated(nats__user="u", nats__password="p", nats__tls__ca="/ca")
    assert found.values["liftbridge.nats.login_name"] == "u" and found.secrets == {"liftbridge.nats.password_file": "p"}
    built_in = translated(nats__embedded=True, nats__servers="a:1")
    assert built_in.values["liftbridge.nats_server.enabled"] and "liftbridge.nats.servers" not in built_in.values
    assert len(built_in.warnings) == 1
    assert "liftbridge.nats_server.enabled" not in values(nats__embedded=False)


@pytest.mark.parametrize("name", sorted(WITHOUT_EFFECT))
def test_what_has_no_effect_is_named_once(name: str) -> None:
    (warning,) = translate({name: "x"}, resolve).warnings
    assert warning.startswith(f"{name} has no effect here: ")


@pytest.mark.parametrize("name", sorted(SILENT))
def test_what_a_server_by_itself_is_needs_no_word(name: str) -> None:
    assert not translate({name: True}, resolve).warnings


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"listne": "a:1"}, "listne: Liftbridge has no such setting; did you mean listen?"),
        ({"listen": "9292"}, "listen: '9292' is no host:port"),
        ({"listen": "nowhere:1"}, "listen: nowhere has no address: unknown"),
        ({"port": 70000}, "port: '70000' is no port"),
        ({"streams.encryption": True}, "streams.encryption: this server does not encrypt"),
        ({"tls.client.authz.enabled": "true"}, "tls.client.authz.enabled: rules of Liftbridge are not read"),
        ({"streams.retention.max.age": "soon"}, "streams.retention.max.age: 'soon' is no duration"),
        ({"cursors.stream.partitions": "many"}, "cursors.stream.partitions: "),
        ({"cursors.stream.partitions": True}, "cursors.stream.partitions: True is no number"),
        ({"clustering.namespace": None}, "clustering.namespace: None is no text"),
    ],
)
def test_what_is_wrong_or_would_be_less_safe_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(LiftbridgeConfigError) as refused:
        translate(given, resolve)
    assert len(refused.value.problems) == 1 and refused.value.problems[0].startswith(sentence)


def test_what_is_more_than_there_can_be_is_cut_with_a_warning() -> None:
    found = translate({"streams.segment.max.bytes": 1 << 40, "clustering.replication.max.bytes": 1 << 30}, resolve)
    assert found.values["liftbridge.streams.segment_size"] == 1 << 30
    assert found.values["liftbridge.max_message_size"] == 4 << 20
    assert len(found.warnings) == 2


def test_every_translated_setting_is_one_of_this_server_and_counts_least() -> None:
    given: dict[str, object] = dict.fromkeys(KNOWN, 1)
    given |= dict.fromkeys(("activity.stream.enabled", "streams.auto.pause.disable.if.subscribers"), True)
    given |= {"listen": "127.0.0.1:1", "logging.level": "warning", "nats.servers": "a:1", "nats.embedded": False}
    given |= {"streams.encryption": False, "tls.client.authz.enabled": False, "tls.client.auth.enabled": True}
    found = translate(given, lambda host: "127.0.0.1").values
    assert found.keys() <= KEYS_BY_PATH.keys()
    assert {path for path in KEYS_BY_PATH if path.startswith("liftbridge.streams.")} <= found.keys()
    wanted = {"liftbridge.namespace": "yaml", "liftbridge.server_id": "yaml"}
    loaded = load_settings(None, {"SHARDD_LIFTBRIDGE_NAMESPACE": "variable"}, translated=wanted)
    assert (loaded.settings.liftbridge.namespace, loaded.settings.liftbridge.server_id) == ("variable", "yaml")
    assert loaded.origins["liftbridge.server_id"] == "settings of Liftbridge"
