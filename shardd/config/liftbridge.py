"""`liftbridge.*`: values, and what they may not say together."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from shardd.config.schema import Settings

MESSAGE_BYTES_MAX: Final = 4 << 20  # of a request over gRPC, all in all
EXPOSED: Final = ("off", "read", "readwrite")
SERVERS_MAX: Final = 16
OUTWARD_SUBJECTS_MAX: Final = 256
SUBJECT_TOKENS_MAX: Final = 16
PREFIX_CHARACTERS_MAX: Final = 256
NATS_FILES: Final = (
    "password_file",
    "token_file",
    "nkey_file",
    "credentials_file",
    "tls_ca_file",
    "tls_cert_file",
    "tls_key_file",
)
_ANY_ADDRESS: Final = ("0.0.0.0", "[::]")
_ROOTS: Final = ("iggy", "root")
_WORD: Final = re.compile(r"[^\s.*>\x00-\x1f\x7f]{1,64}")
_PREFIX: Final = re.compile(r"[^\s.*>\x00-\x1f\x7f]+(\.[^\s.*>\x00-\x1f\x7f]+)*")
_SUBJECT: Final = re.compile(r"(?:(?:\*|[^\s.*>\x00-\x1f\x7f]+)\.)*(?:>|\*|[^\s.*>\x00-\x1f\x7f]+)")
_ADVERTISED: Final = re.compile(r"[0-9A-Za-z.-]{1,253}:[0-9]{1,5}", re.ASCII)
_SERVER: Final = re.compile(r"(nats|tls)://[^\s/@]{1,255}")


class LiftbridgeStreams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`liftbridge.streams.*`: what holds for streams that say nothing themselves. 0: no limit, no pause;
    `segment_size_bytes` 0: that of the server."""

    retention_age_ms: int
    retention_size_bytes: int
    retention_messages: int
    segment_size_bytes: int
    segment_age_ms: int
    auto_pause_time_ms: int
    auto_pause_disable_if_subscribers: bool


class LiftbridgeTls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`liftbridge.tls.*`. Without a certificate of its own the door shows the first one of TCP. `client_ca_file`: who
    must have signed the certificate that each client shows; "": none is asked for."""

    enabled: bool
    self_signed: bool
    cert_file: str
    key_file: str
    client_ca_file: str


class LiftbridgeNats(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`liftbridge.nats.*`: the NATS servers whose messages are stored; no server: none. `user`: in whose name.
    `outward_subjects`, `ack_inbox_prefix`: shardd/doors/liftbridge/nats/outward.py. The others: how the door logs in
    there; files are read when it connects."""

    servers: tuple[str, ...]
    user: str
    outward_subjects: tuple[str, ...]
    ack_inbox_prefix: str
    login_name: str
    password_file: str
    token_file: str
    nkey_file: str
    credentials_file: str
    tls_ca_file: str
    tls_cert_file: str
    tls_key_file: str


class LiftbridgeNatsServer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`liftbridge.nats_server.*`: the door takes NATS publishers itself. Without a login they act as
    `liftbridge.anonymous_user`, on a loopback address only."""

    enabled: bool
    address: str
    max_payload_bytes: int


class Liftbridge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`liftbridge.*`: the door for clients of Liftbridge. `address` as that of TCP; `advertised_address` "": the same.
    `server_id` "": one that the data directory keeps. `namespace`: the native stream that holds the streams of
    Liftbridge, and the beginning of its own subjects. `anonymous_user` "": a login is needed. `expose_native`: whether
    other topics are streams, too."""

    enabled: bool
    address: str
    advertised_address: str
    cpus: str
    server_id: str
    namespace: str
    anonymous_user: str
    cursors_partitions: int
    activity: bool
    group_consumer_timeout_ms: int
    group_coordinator_timeout_ms: int
    max_message_size_bytes: int
    expose_native: str
    ack_all_fsync: bool
    streams: LiftbridgeStreams
    tls: LiftbridgeTls
    nats: LiftbridgeNats
    nats_server: LiftbridgeNatsServer


def parse_word(value: object) -> str:
    """A token of a subject of NATS. ValueError."""
    if not isinstance(value, str) or not _WORD.fullmatch(value):
        raise ValueError(f"{value!r} has blanks, dots or wildcards, or more than 64 characters")
    return value


def parse_advertised(value: object) -> str:
    """ "host:port" as clients reach it: a name or an IPv4 address. ValueError."""
    if value == "":
        return ""
    if not isinstance(value, str) or not _ADVERTISED.fullmatch(value) or value.startswith("0.0.0.0:"):
        raise ValueError(f"{value!r} is no host:port that clients can reach")
    return value


def parse_server_id(value: object) -> str:
    return "" if value == "" else parse_word(value)


def parse_user(value: object) -> str:
    """Never root, by its usual names; a worker refuses it by its id as well. ValueError."""
    if not isinstance(value, str) or "\0" in value or value in _ROOTS:
        raise ValueError(f"{value!r} is no user that others may act as")
    return value


def parse_servers(value: object) -> list[str]:
    """A list, or a text with commas. ValueError."""
    entries = [entry.strip() for entry in value.split(",") if entry.strip()] if isinstance(value, str) else value
    if not isinstance(entries, list) or len(entries) > SERVERS_MAX:
        raise ValueError(f"not a list of at most {SERVERS_MAX} addresses")
    for entry in entries:
        if not isinstance(entry, str) or not _SERVER.fullmatch(entry):
            raise ValueError(f"{entry!r} is no address such as nats://host:4222")
    return entries


def parse_outward_subjects(value: object) -> list[str]:
    """A list of subjects, with wildcards or without, or a text with commas. ValueError."""
    entries = [entry.strip() for entry in value.split(",") if entry.strip()] if isinstance(value, str) else value
    if not isinstance(entries, list) or len(entries) > OUTWARD_SUBJECTS_MAX:
        raise ValueError(f"not a list of at most {OUTWARD_SUBJECTS_MAX} subjects")
    for entry in entries:
        if not isinstance(entry, str) or not _SUBJECT.fullmatch(entry) or entry.count(".") >= SUBJECT_TOKENS_MAX:
            raise ValueError(f"{entry!r} is not a subject of at most {SUBJECT_TOKENS_MAX} tokens, as events.> is one")
    return entries


def parse_ack_inbox_prefix(value: object) -> str:
    """Tokens of a subject, without wildcards. ValueError."""
    if value == "":
        return ""
    if not isinstance(value, str) or not _PREFIX.fullmatch(value) or len(value) > PREFIX_CHARACTERS_MAX:
        raise ValueError(f"{value!r} is not a subject without wildcards, such as acks.of.mine")
    return value


def check(settings: Settings) -> list[str]:
    """Sentences about keys that do not fit each other."""
    liftbridge = settings.liftbridge
    if not liftbridge.enabled:
        return []
    if liftbridge.nats.servers and not liftbridge.nats.user:
        return ["liftbridge.nats.user: messages of a NATS server are stored in somebody's name"]
    if liftbridge.nats.servers and liftbridge.nats_server.enabled:
        return ["liftbridge.nats_server.enabled: with liftbridge.nats.servers there would be two"]
    if liftbridge.address.rpartition(":")[0] in _ANY_ADDRESS and not liftbridge.advertised_address:
        return ["liftbridge.advertised_address: clients are told where to connect, and every address is none"]
    tls = liftbridge.tls
    if tls.client_ca_file and not tls.enabled:
        return ["liftbridge.tls.client_ca_file: has no effect without liftbridge.tls.enabled"]
    if not liftbridge.address.endswith(":0") and liftbridge.address in (
        settings.tcp.address,
        settings.http.address if settings.http.enabled else "",
        liftbridge.nats_server.address if liftbridge.nats_server.enabled else "",
    ):
        return ["liftbridge.address: another port has it"]
    return []
