"""Settings: sources, precedence, refusals (docs/configuration.md)."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from shardd.config.iggy_keys import NOT_SERVED_PATHS
from shardd.config.issuers import TrustedIssuer
from shardd.config.keys import KEYS, RENAMED, environment_suffix, settings_toml, value_of
from shardd.config.loader import ConfigError, load_settings
from shardd.config.nodes import ClusterNodeSettings
from shardd.config.root_user import resolve_root_user
from shardd.config.schema import NEVER

ROOT = Path(__file__).parents[2]


def problems_of(file: Path | None, environment: dict[str, str]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_settings(file, environment)
    return caught.value.problems


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "server.toml"
    path.write_text(text)
    return path


def test_the_shipped_file_states_every_key_with_its_default() -> None:
    shipped = load_settings(ROOT / "config" / "server.toml", {})
    assert shipped.settings == load_settings(None, {}).settings
    assert set(shipped.origins.values()) == {str(ROOT / "config" / "server.toml")}


def test_precedence(tmp_path: Path) -> None:
    file = write(
        tmp_path, '[tcp]\naddress = "127.0.0.1:1"\n[server]\nconnections_max = 5\n[system]\npath = "of_file"\n'
    )
    environment = {
        "IGGY_TCP_ADDRESS": "127.0.0.1:2",
        "SHARDD_TCP_ADDRESS": "127.0.0.1:3",
        "IGGY_SYSTEM_PATH": "of_iggy",
        "SHARDD_SYSTEM_SEGMENT_SIZE": "",
    }
    loaded = load_settings(file, environment, {"system.path": "of_command_line"})
    assert loaded.settings.tcp.address == "127.0.0.1:3"
    assert loaded.settings.server.connections_max == 5
    assert loaded.settings.system.path == "of_command_line"
    assert loaded.settings.system.segment_size_bytes == 1 << 30  # an empty variable counts as absent
    assert loaded.origins["tcp.address"] == "SHARDD_TCP_ADDRESS"
    assert loaded.origins["server.connections_max"] == str(file)
    assert loaded.origins["system.path"] == "command line"
    assert loaded.origins["system.segment.size"] == "default"
    assert load_settings(file, {"IGGY_TCP_ADDRESS": "127.0.0.1:2"}).settings.tcp.address == "127.0.0.1:2"


def test_settings_are_frozen() -> None:
    settings = load_settings(None, {}).settings
    with pytest.raises(AttributeError):
        settings.tcp.address = "127.0.0.1:1"  # type: ignore[misc]


def test_all_problems_are_listed_at_once(tmp_path: Path) -> None:
    file = write(tmp_path, "[tcp]\nadress = 'x'\n[server]\nconnections_max = 0\n[system.encryption]\nenabled = true\n")
    problems = problems_of(file, {"SHARDD_SYSTEM_SEGMENT_SIZ": "1 MB", "IGGY_TCP_SOCKET_LINGER": "soon"})
    assert len(problems) == 5
    text = "\n".join(problems)
    assert "tcp.adress" in text and "closest known key is tcp.address" in text
    assert "server.connections_max" in text
    assert "system.encryption.enabled" in text and "does not serve" in text
    assert "SHARDD_SYSTEM_SEGMENT_SIZ: unknown setting; the closest known one is SHARDD_SYSTEM_SEGMENT_SIZE" in text
    assert "tcp.socket.linger (IGGY_TCP_SOCKET_LINGER): 'soon' is no duration" in text


@pytest.mark.parametrize("path", sorted(NOT_SERVED_PATHS))
def test_iggy_settings_that_are_not_served(path: str, tmp_path: Path) -> None:
    suffix = path.upper().replace(".", "_")
    loaded = load_settings(None, {f"IGGY_{suffix}": "1"})
    assert loaded.not_served == (f"IGGY_{suffix}",)
    assert f"IGGY_{suffix}" in " ".join(loaded.warnings())
    assert len(problems_of(None, {f"SHARDD_{suffix}": "1"})) == 1
    section, _, name = path.rpartition(".")
    assert "does not serve" in problems_of(write(tmp_path, f"[{section}]\n{name} = 1\n"), {})[0]


def test_variables_of_clients_are_no_settings() -> None:
    """Who has them in a shell starts a server there, too."""
    for name in ("URL", "CONTEXT", "TOKEN", "USERNAME", "PASSWORD", "CLIENT_CODEC"):
        assert load_settings(None, {f"SHARDD_{name}": "x"}).warnings() == []


def test_other_iggy_variables() -> None:
    silent = ["IGGY_ROOT_USERNAME", "IGGY_TEST_X", "IGGY_CI_BUILD", "IGGY_CONFIG_PATH", "IGGY_CONNECTORS_SINK_A"]
    environment = dict.fromkeys(silent, "x") | {
        "IGGY_TCP_ADRESS": "x",
        "IGGY_QUIC_SOCKET_KEEPALIVE": "x",
        "SHARDD_TEST_SEED": "1",
    }
    loaded = load_settings(None, environment)
    assert loaded.not_served == ("IGGY_QUIC_SOCKET_KEEPALIVE",)
    assert loaded.unknown == ("IGGY_TCP_ADRESS",)
    assert "did you mean IGGY_TCP_ADDRESS?" in " ".join(loaded.warnings())
    assert load_settings(None, dict.fromkeys(silent, "x")).warnings() == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tcp = 5", "unknown key"),
        ("[tcp.address]\nport = 1", "is no address"),
        ("[tcp]\naddress = 8090", "is no address"),
        ("[tcp]\nsocket_migration = 1", "neither true nor false"),
        ("[system.segment]\nsize = 513", "not a multiple of 512"),
        ("[tcp]\npipeline_window_requests = 33", "out of range"),
        ("[tcp]\ndialect = 'classic'\n[legacy]\nanonymous_user = 'a'", "has no effect with tcp.dialect = classic"),
        ("[tcp.tls]\nenabled = true\nself_signed = true\n[legacy]\nanonymous_user = 'a'", "know no TLS"),
        ("[legacy]\nanonymous_release = '0.0.70'", "no release from 0.0.11 to 0.0.69"),
        ("[legacy]\nanonymous_release = '0.0.10'", "no release from 0.0.11 to 0.0.69"),
        ("[legacy]\nanonymous_user = 5", "no name of a user"),
        ("[system.segment]\nsize = '2 GiB'", "out of range"),
        ("[system.topic]\nmax_size = '0'", "stands for the server default"),
        ("[system.topic]\nmax_size = '1 MiB'", "smaller than system.segment.size"),
        ("[system.partition]\nsync_interval = 30", "with a unit"),
        ("[system.sharding]\ncpu_allocation = 'numa:sockets=1'", "Unknown NUMA parameter"),
        ("[system.logging]\nlevel = 'loud'", "is none of"),
        ("[system.memory_pool]\nsize = '1 MiB'", "out of range"),
        ("[[cluster.node.others]]\nname = 'a'", "is no text"),
        ("[[cluster.node.others]]\nname = 'a'\nip = 'b'\nports = { tcp = 0 }", "is no port"),
        ("[[cluster.node.others]]\nname = 'a'\nip = 'b'\nports = { udp = 1 }", "are no ports"),
        ("[[cluster.node.others]]\nname = 'a'\nip = 'b'\nrole = 1", "is no node"),
        ("[cluster.node]\nothers = [{ name = 'a', ip = 'b' }, { name = 'a', ip = 'c' }]", "the same name"),
        (
            "[cluster.node]\nothers = [{ name='a', ip='b', ports={ tcp=1 } }, { name='c', ip='b', ports={ tcp=1 } }]",
            "the same address for tcp",
        ),
        ("[cluster]\nenabled = true\n[cluster.node.current]\nname = 'iggy-node-2'", "the name of this one"),
        ("[cluster]\nenabled = true\n[tcp]\naddress = '127.0.0.1:8091'", "the tcp address of this one"),
        ("[system", "server.toml"),
    ],
)
def test_refused(text: str, problem: str, tmp_path: Path) -> None:
    problems = problems_of(write(tmp_path, text), {})
    assert len(problems) == 1
    assert problem in problems[0]


def test_nodes_of_the_cluster_come_from_the_file_or_from_variables(tmp_path: Path) -> None:
    file = write(tmp_path, "[[cluster.node.others]]\nname = 'a'\nip = '10.0.0.1'\nports = { tcp = 1, http = 2 }\n")
    assert load_settings(file, {}).settings.cluster.others == (ClusterNodeSettings("a", "10.0.0.1", 1, 0, 2, 0),)
    environment = {
        "IGGY_CLUSTER_ENABLED": "true",
        "IGGY_CLUSTER_NODE_OTHERS_1_NAME": "second",
        "IGGY_CLUSTER_NODE_OTHERS_1_IP": "10.0.0.3",
        "IGGY_CLUSTER_NODE_OTHERS_0_NAME": "first",
        "IGGY_CLUSTER_NODE_OTHERS_0_IP": "10.0.0.2",
        "IGGY_CLUSTER_NODE_OTHERS_0_PORTS_TCP": "8099",
        "IGGY_CLUSTER_NODE_OTHERS_0_PORTS_WEBSOCKET": "8098",
    }
    loaded = load_settings(file, environment)
    first = ClusterNodeSettings("first", "10.0.0.2", 8099, 0, 0, 8098)
    assert loaded.settings.cluster.others == (first, ClusterNodeSettings("second", "10.0.0.3", 0, 0, 0, 0))
    assert loaded.settings.cluster.enabled and loaded.warnings() == []
    assert loaded.origins["cluster.node.others"] == "IGGY_CLUSTER_NODE_OTHERS_*"
    own = {"SHARDD_CLUSTER_NODE_OTHERS_0_NAME": "own", "SHARDD_CLUSTER_NODE_OTHERS_0_IP": "10.0.0.4"}
    loaded = load_settings(file, environment | own)
    assert [node.name for node in loaded.settings.cluster.others] == ["own"]
    again = tmp_path / "again.toml"
    again.write_text(settings_toml(loaded.settings))
    assert load_settings(again, {}).settings == loaded.settings


def test_trusted_issuers_come_from_the_file_or_from_variables(tmp_path: Path) -> None:
    text = "[[http.jwt.trusted_issuers]]\nissuer = 'a'\naudience = 'b'\njwks_file = 'keys'\nuser_claim = 'sub'\n"
    file = write(tmp_path, text + "users = 'x@y=alice, a=b=bob'\n")
    users = {"x@y": "alice", "a=b": "bob"}
    expected = TrustedIssuer("a", "b", "RS256", "", "keys", 0, "sub", users)
    assert load_settings(file, {}).settings.http.jwt.trusted_issuers == (expected,)
    environment = {
        "IGGY_HTTP_JWT_TRUSTED_ISSUERS_0_ISSUER": "test-issuer",
        "IGGY_HTTP_JWT_TRUSTED_ISSUERS_0_JWKS_URL": "http://127.0.0.1:8081/.well-known/jwks.json",
        "IGGY_HTTP_JWT_TRUSTED_ISSUERS_0_AUDIENCE": "iggy.apache.org",
        "IGGY_HTTP_JWT_TRUSTED_ISSUERS_0_USER_ID": "7",
    }
    loaded = load_settings(file, environment)
    [issuer] = loaded.settings.http.jwt.trusted_issuers
    assert (issuer.issuer, issuer.user_id, issuer.algorithm) == ("test-issuer", 7, "RS256")
    for settings in (loaded.settings, load_settings(file, {}).settings):
        again = tmp_path / "again.toml"
        again.write_text(settings_toml(settings))
        assert load_settings(again, {}).settings == settings


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"issuer": ""}, "issuer: '' is no text"),
        ({"audience": None}, "audience: None is no text"),
        ({"algorithm": "HS256"}, "is none of RS256"),
        ({"algorithm": "none"}, "is none of RS256"),
        ({"jwks_url": "https://a/keys"}, "one of them"),
        ({"jwks_file": ""}, "one of them"),
        ({"jwks_file": "", "jwks_url": "http://a/keys"}, "https"),
        ({"jwks_file": "", "jwks_url": "http://127.0.0.1.a/keys"}, "https"),
        ({"jwks_file": "", "jwks_url": "file:///etc/passwd"}, "no address of keys"),
        ({"jwks_file": "", "jwks_url": "https://u:p@a/keys"}, "no address of keys"),
        ({"jwks_file": "", "jwks_url": "https://a:99999/"}, "no address of keys"),
        ({"user_claim": ""}, "that is root"),
        ({"user_claim": "", "user_id": "0"}, "that is root"),
        ({"user_id": "1"}, "one of them"),
        ({"user_id": "-1"}, "no id of a user"),
        ({"users": "alice"}, "no list"),
        ({"users": "a=b,a=c"}, "twice"),
        ({"secret": "x"}, "is no issuer"),
    ],
)
def test_issuers_that_are_refused(changes: dict[str, str | None], problem: str, tmp_path: Path) -> None:
    entry = {"issuer": "i", "audience": "a", "jwks_file": "k", "user_claim": "sub"} | changes
    fields = ", ".join(f"{name} = '{value}'" for name, value in entry.items() if value is not None)
    [said] = problems_of(write(tmp_path, f"[http.jwt]\ntrusted_issuers = [{{ {fields} }}]\n"), {})
    assert problem in said


def test_an_issuer_is_not_this_server_and_none_is_there_twice(tmp_path: Path) -> None:
    entry = "{ issuer = 'iggy.apache.org', audience = 'a', jwks_file = 'k', user_id = 1 }"
    for count, problem in ((1, "whose tokens this server makes"), (2, "there twice"), (11, "at most 10")):
        text = f"[http]\nenabled = true\n[http.jwt]\ntrusted_issuers = [{', '.join([entry] * count)}]\n"
        [said] = problems_of(write(tmp_path, text), {})
        assert problem in said


def test_a_missing_file_is_a_problem(tmp_path: Path) -> None:
    assert "No such file" in problems_of(tmp_path / "none.toml", {})[0]


def test_the_effective_settings_can_be_loaded_again(tmp_path: Path) -> None:
    environment = {
        "SHARDD_TCP_ADDRESS": "[::1]:0",
        "SHARDD_TCP_SOCKET_LINGER": "1500 ms",
        "SHARDD_SYSTEM_SEGMENT_SIZE": "512",
        "SHARDD_SYSTEM_TOPIC_MAX_SIZE": "10 GB",
        "SHARDD_SYSTEM_TOPIC_MESSAGE_EXPIRY": "2 days 4 hours 15 minutes",
        "SHARDD_SYSTEM_PATH": 'a "quoted" \\ päth',
    }
    first = load_settings(None, environment).settings
    assert first.system.topic_message_expiry_us == (2 * 86400 + 4 * 3600 + 15 * 60) * 1_000_000
    second = load_settings(write(tmp_path, settings_toml(first, {"tcp.address": "[::1]:4711"})), {}).settings
    assert second.tcp.address == "[::1]:4711"
    assert msgspec.structs.replace(second, tcp=first.tcp) == first
    assert value_of(second, KEYS[0]) == "[::1]:4711"


def test_server_defaults_of_topics() -> None:
    system = load_settings(None, {}).settings.system
    assert (system.topic_max_size_bytes, system.topic_message_expiry_us) == (NEVER, NEVER)


def test_log_filters_of_iggy_deployments() -> None:
    settings = load_settings(None, {"IGGY_SYSTEM_LOGGING_LEVEL": "warn,hyper=debug"}).settings
    assert settings.system.logging.level == "warn"


class TestRootUser:
    def test_from_the_environment(self) -> None:
        root = resolve_root_user({"IGGY_ROOT_USERNAME": "admin", "IGGY_ROOT_PASSWORD": "secret"}, True)
        assert (root.name, root.password, root.generated) == ("admin", "secret", False)
        assert "secret" not in repr(root)

    def test_own_names_win(self) -> None:
        environment = {f"{prefix}_ROOT_{part}": prefix.lower() for prefix in ("IGGY", "SHARDD") for part in PARTS}
        assert resolve_root_user(environment, False).name == "shardd"

    @pytest.mark.parametrize("prefix", ["SHARDD", "IGGY"])
    @pytest.mark.parametrize("part", ["USERNAME", "PASSWORD"])
    def test_both_or_neither(self, prefix: str, part: str) -> None:
        with pytest.raises(ValueError, match="both or neither"):
            resolve_root_user({f"{prefix}_ROOT_{part}": "admin"}, True)

    @pytest.mark.parametrize(
        ("name", "password"), [("ab", "abc"), ("a" * 51, "abc"), ("abc", "ab"), ("abc", "a" * 101)]
    )
    def test_lengths(self, name: str, password: str) -> None:
        with pytest.raises(ValueError, match="bytes are allowed"):
            resolve_root_user({"SHARDD_ROOT_USERNAME": name, "SHARDD_ROOT_PASSWORD": password}, False)

    def test_default_and_generated(self) -> None:
        assert resolve_root_user({}, True).password == "iggy"
        first, second = resolve_root_user({}, False), resolve_root_user({}, False)
        assert first.generated and first.name == "iggy"
        assert 20 <= len(first.password) <= 39 and first.password.isalnum()
        assert first.password != second.password


PARTS = ("USERNAME", "PASSWORD")


@pytest.mark.parametrize(
    ("file", "environment", "level"),
    [
        ("", {}, "written"),
        ('[system.partition]\nack = "memory"', {}, "memory"),
        ("[system.partition]\nenforce_fsync = true", {}, "durable"),
        ('[system.partition]\nack = "durable"\nenforce_fsync = false', {}, "durable"),
        ('[system.partition]\nack = "written"', {"IGGY_SYSTEM_PARTITION_ENFORCE_FSYNC": "true"}, "durable"),
        ("", {"IGGY_SYSTEM_PARTITION_ENFORCE_FSYNC": "true", "SHARDD_SYSTEM_PARTITION_ACK": "durable"}, "durable"),
    ],
)
def test_enforce_fsync_means_durable(tmp_path: Path, file: str, environment: dict[str, str], level: str) -> None:
    settings = load_settings(write(tmp_path, file), environment).settings
    assert settings.system.partition.ack == level
    written = write(tmp_path, settings_toml(settings))  # what a running server writes can be read again
    assert load_settings(written, {}).settings == settings


@pytest.mark.parametrize(
    ("file", "environment"),
    [
        ('[system.partition]\nack = "written"\nenforce_fsync = true', {}),
        ("[system.partition]\nenforce_fsync = true", {"IGGY_SYSTEM_PARTITION_ACK": "memory"}),
        ("", {"IGGY_SYSTEM_PARTITION_ENFORCE_FSYNC": "true", "SHARDD_SYSTEM_PARTITION_ACK": "written"}),
    ],
)
def test_enforce_fsync_contradicts_a_weaker_level(tmp_path: Path, file: str, environment: dict[str, str]) -> None:
    [problem] = problems_of(write(tmp_path, file), environment)
    assert "system.partition.enforce_fsync" in problem
    assert "asks for the level durable" in problem


EXAMPLES = {"login_timeout": "7 s", "idle_timeout": "8 s", "request_timeout": "9 s"} | dict.fromkeys(
    ("partial_frame_timeout", "slow_reader_timeout"), "11 s"
)


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_name_of_a_setting_works_with_one_warning(old: str, tmp_path: Path) -> None:
    section, _, name = old.rpartition(".")
    value = EXAMPLES.get(name, "12")
    wanted = load_settings(None, {}, {RENAMED[old]: value})
    assert wanted.settings != load_settings(None, {}).settings and wanted.warnings() == []
    variable = f"SHARDD_{environment_suffix(old)}"
    file = write(tmp_path, f'[{section}]\n{name} = "{value}"\n')
    for loaded, place in [
        (load_settings(file, {}), str(file)),
        (load_settings(None, {variable: value}), variable),
        (load_settings(file, {f"IGGY_{environment_suffix(old)}": value}), f"IGGY_{environment_suffix(old)}"),
    ]:
        assert loaded.settings == wanted.settings
        assert loaded.origins[RENAMED[old]] == place
        [warning] = loaded.warnings()
        assert f"{old} ({place}) is {RENAMED[old]}" in warning


def test_all_old_names_are_told_in_one_line(tmp_path: Path) -> None:
    file = write(tmp_path, "[tcp]\nconnections_max = 5\nlogin_attempts_max = 6\n")
    [warning] = load_settings(file, {"SHARDD_TCP_IDLE_TIMEOUT": "1 h"}).warnings()
    assert warning.count(" is server.") == 3 and "\n" not in warning


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_name_beside_the_new_one_is_refused_wherever_they_stand(old: str, tmp_path: Path) -> None:
    new, value = RENAMED[old], EXAMPLES.get(old.rpartition(".")[2], "12")
    texts = {}
    for path in (old, new):
        section, _, name = path.rpartition(".")
        texts[path] = f'[{section}]\n{name} = "{value}"\n'
    for file, environment in [
        (write(tmp_path, texts[old] + texts[new]), {}),
        (None, {f"SHARDD_{environment_suffix(old)}": value, f"IGGY_{environment_suffix(new)}": value}),
    ]:
        [problem] = problems_of(file, environment)
        assert f"{old} (" in problem and f"is the old name of {new} (" in problem
    for path, other in ((old, new), (new, old)):
        [problem] = problems_of(write(tmp_path, texts[path]), {f"SHARDD_{environment_suffix(other)}": value})
        assert f"is the old name of {new} (" in problem
