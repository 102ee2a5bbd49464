"""Which proxies are trusted, and at which ports: what the settings take and what they refuse."""

from __future__ import annotations

import pytest

from shardd.config.loader import ConfigError, load_settings
from shardd.config.proxies import NETWORKS_MAX, Proxies, parse_networks
from shardd.config.schema import Settings

NETWORKS = "SHARDD_SERVER_TRUSTED_PROXIES"


def settings_of(env: dict[str, str]) -> Settings:
    return load_settings(None, env).settings


def test_networks_have_a_normal_form() -> None:
    settings = settings_of(
        {NETWORKS: "10.0.0.0/8, ::ffff:192.0.2.0/120,FD00::1,203.0.113.7", "SHARDD_TCP_PROXY_PROTOCOL": "true"}
    )
    networks = ("10.0.0.0/8", "192.0.2.0/24", "fd00::1/128", "203.0.113.7/32")
    assert settings.proxies == Proxies(networks, tcp=True)
    assert settings.proxies.lines_for(settings.proxies.tcp) == "".join(f"{each}\n" for each in networks)
    assert settings.proxies.lines_for(settings.proxies.websocket) == ""


def test_nothing_is_trusted_by_default() -> None:
    assert settings_of({}).proxies == Proxies()


@pytest.mark.parametrize("text", ["0.0.0.0/0", "::/0", "::ffff:0.0.0.0/96"])
def test_a_network_of_all_addresses_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="trusts every address"):
        parse_networks(text)


@pytest.mark.parametrize("entry", ["10.0.0.1/8", "proxy.example", "10.0.0.0/33", "fe80::1%lo", "10.0.0", 7, None])
def test_what_is_not_a_network_is_refused(entry: object) -> None:
    with pytest.raises(ValueError, match="is not a network such as"):
        parse_networks([entry])


def test_more_networks_than_the_core_has_places_for_are_refused() -> None:
    assert len(parse_networks(["10.0.0.0/8"] * NETWORKS_MAX)) == NETWORKS_MAX
    with pytest.raises(ValueError, match=f"at most {NETWORKS_MAX} networks"):
        parse_networks(["10.0.0.0/8"] * (NETWORKS_MAX + 1))


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        ({"SHARDD_TCP_PROXY_PROTOCOL": "true"}, "tcp.proxy_protocol: has no effect without server.trusted_proxies"),
        (
            {"SHARDD_HTTP_FORWARDED_FOR": "true", "SHARDD_HTTP_ENABLED": "true"},
            "http.forwarded_for: has no effect without server.trusted_proxies",
        ),
        ({NETWORKS: "10.0.0.1"}, "server.trusted_proxies: has no effect alone"),
    ],
)
def test_settings_without_effect_are_refused(env: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load_settings(None, env)


def test_switches_of_ports_that_are_disabled_are_not_looked_at() -> None:
    for switch in ("SHARDD_HTTP_FORWARDED_FOR", "SHARDD_WEBSOCKET_PROXY_PROTOCOL"):
        for networks in (dict[str, str](), {NETWORKS: "10.0.0.1"}):
            settings = settings_of({switch: "true"} | networks)
            assert not settings.http.enabled and not settings.websocket.enabled
