"""Names of native topics as subjects of NATS: for topics that were not made through Liftbridge."""

from __future__ import annotations

from typing import Final

_BREAKS: Final = frozenset("*>%")


def title_of(stream: str, topic: str) -> str:
    """As what Liftbridge's clients know a topic of another native stream."""
    return f"{stream}/{topic}"


def subject_of(name: str) -> str:
    """The name, with what no token of a subject may hold as percent-encoded UTF-8. Dots stay between tokens."""
    escaped = "".join(map(_escaped, name))
    tokens = escaped.split(".")
    return ".".join(tokens) if all(tokens) else escaped.replace(".", "%2E")


def subject_of_topic(stream: str, topic: str) -> str:
    return f"{subject_of(stream)}.{subject_of(topic)}"


def _escaped(sign: str) -> str:
    if sign.isprintable() and not sign.isspace() and sign not in _BREAKS:
        return sign
    return "".join(f"%{byte:02X}" for byte in sign.encode("utf-8", "surrogatepass"))
