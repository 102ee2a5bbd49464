"""Connection strings, the environment and contexts, in their order."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardd.cli.contexts import without_login
from shardd.client.errors import SettingsError
from shardd.client.settings import Settings, parse, resolve
from shardd.security.tokens import new_token


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("shardd://host", Settings("host")),
        ("host:1", Settings("host", 1)),
        ("shardd://[::1]:7", Settings("::1", 7)),
        ("shardd://n%40me:p%2Fw@h?deadline=2.5&window=4", Settings("h", 8090, "n@me", "p/w", deadline_s=2.5, window=4)),
        ("shardd://t%3Dken@h", Settings("h", token="t=ken")),
        ("shardd://a/b+c//d==@h:1?window=4", Settings("h", 1, token="a/b+c//d==", window=4)),
        ("shardd:///ab@[::1]", Settings("::1", token="/ab")),
        ("a/b@h", Settings("h", token="a/b")),
        ("shardd://n:p/w#@x@h", Settings("h", username="n", password="p/w#@x")),
        ("shardd+tls://h?ca_file=/a@b.pem", Settings("h", tls=True, ca_file="/a@b.pem")),
        ("shardd+unix://a/b@/run/s@x.sock", Settings(unix_path="/run/s@x.sock", token="a/b")),
        ("shardd+unix:///run/s@/x.sock", Settings(unix_path="/run/s@/x.sock")),
    ],
)
def test_a_connection_string_says_where_and_who(text: str, settings: Settings) -> None:
    assert parse(text) == settings


@pytest.mark.parametrize(
    "text", ["", "http://x", "shardd://", "shardd://h/path", "h:x", "h?deadline=0", "h?deadline=nan", "h?what=1", "h?x"]
)
def test_what_makes_no_sense_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(SettingsError):
        parse(text)


def test_tokens_of_the_server_are_taken_as_they_are() -> None:
    for _ in range(200):  # one in two has a slash
        token = new_token()
        assert parse(f"shardd://{token}@h:1") == Settings("h", 1, token=token)
        assert without_login(f"shardd+tls://{token}@h:1?ca_file=a@b") == "shardd+tls://h:1?ca_file=a@b"


@pytest.mark.parametrize("url", ["shardd://n:hid?den@h", "n:hid?den@h", "shardd://n:hid://den@h", "x://hid/den@h"])
def test_login_of_any_text_is_left_out_of_reports(url: str) -> None:
    assert "hid" not in without_login(url) and "den" not in without_login(url)


def test_no_text_of_settings_has_a_secret() -> None:
    assert "hidden" not in repr(parse("shardd://name:hidden@h")) + repr(parse("shardd://hidden@h"))


def contexts(home: Path, text: str) -> dict[str, str]:
    path = home / ".config/shardd/contexts.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return {"HOME": str(home)}


def test_what_is_given_comes_before_the_environment_and_that_before_contexts(tmp_path: Path) -> None:
    text = 'current = "a"\n[contexts.a]\nurl = "a:1"\nusername = "u"\npassword = "p"\n[contexts.b]\ntoken_file = "t"\n'
    home = contexts(tmp_path, text)
    (tmp_path / ".config/shardd/t").write_text("secret\n")
    assert resolve("x:9", home | {"SHARDD_URL": "y:8"}) == Settings("x", 9)
    assert resolve(None, home | {"SHARDD_URL": "y:8", "SHARDD_TOKEN": "k"}) == Settings("y", 8, token="k")
    assert resolve(None, home) == Settings("a", 1, "u", "p")
    assert resolve(None, home | {"SHARDD_CONTEXT": "b", "SHARDD_TOKEN": "other"}).token == "secret"
    assert resolve(None, {"HOME": "/nowhere", "SHARDD_USERNAME": "n", "SHARDD_PASSWORD": "w"}).username == "n"
    assert resolve(None, {"HOME": "/nowhere"}) == Settings()


def test_an_unknown_context_names_the_closest_and_a_broken_file_is_told(tmp_path: Path) -> None:
    home = contexts(tmp_path / "a", '[contexts.production]\nurl = "h"\n')
    with pytest.raises(SettingsError, match=r"no context 'prodution' .* is 'production' meant\?"):
        resolve(None, home | {"SHARDD_CONTEXT": "prodution"})
    for number, text in enumerate(("[", '[contexts.a]\nurll = "h"\n', "[contexts.a]\nurl = 5\n", "contexts = 5\n")):
        home = contexts(tmp_path / str(number), text)
        with pytest.raises(SettingsError, match=r"contexts\.toml"):
            resolve(None, home | {"SHARDD_CONTEXT": "a"})


@pytest.mark.parametrize(
    "url",
    [
        "shardd://a..b",
        "shardd://.a",
        f"shardd://{'x' * 64}.org",
        f"shardd+tls://{'x' * 300}",
        "shardd://\u00e9..x",
        "shardd://\udcff",
        f"shardd+unix:///{'x' * 107}",
    ],
)
def test_address_to_which_no_connection_can_be_made_is_refused_before_one_is_tried(url: str) -> None:
    """Resolver and kernel refuse them with errors of the encoding, or of no number, which look like a lost way."""
    with pytest.raises(SettingsError, match=r"cannot be the name of a host|the path of the Unix socket has"):
        parse(url)


@pytest.mark.parametrize(
    "host", ["localhost.", "x" * 63, "::ffff:192.0.2.1", "fe80::1%eth0", "b\u00fccher.example", "a_b"]
)
def test_name_that_a_resolver_takes_is_a_host(host: str) -> None:
    assert Settings(host).host == host
