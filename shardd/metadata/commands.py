"""The changes that the metadata log records: one frozen struct per change, tagged with the wire code it comes from.

They are stored as MessagePack arrays `[tag, field, ...]`, the fields of a base first; a new field goes to the end and
needs a default, a base gets none. Objects are addressed by `Ref`, so that a command never acts on a later object that
got the same id.
"""

from __future__ import annotations

from typing import Any

import msgspec
from immutables import Map

from shardd.metadata.state import Permissions


class Ref(msgspec.Struct, frozen=True, array_like=True):
    """A stream, topic or consumer group: its id and the incarnation it had when it was looked up."""

    id: int
    incarnation: int


class OnStream(msgspec.Struct, frozen=True, array_like=True):
    """What a change of a stream begins with."""

    stream: Ref


class OnTopic(msgspec.Struct, frozen=True, array_like=True):
    """What a change of a topic begins with."""

    stream: Ref
    topic: Ref


class CreateStream(msgspec.Struct, frozen=True, array_like=True, tag=202):
    """`chosen_id`: None, the next one (`shardd.metadata.ids`)."""

    name: str
    chosen_id: int | None = None


class DeleteStream(OnStream, frozen=True, array_like=True, tag=203):
    """With everything in it."""


class UpdateStream(OnStream, frozen=True, array_like=True, tag=204):
    name: str


class PurgeStream(OnStream, frozen=True, array_like=True, tag=205):
    """All messages go; it stays."""


class CreateTopic(OnStream, frozen=True, array_like=True, tag=302):
    """`message_expiry_us` and `max_topic_size_bytes` are resolved (docs/protocol/primitives.md#topic-values).
    `retention`: it is on from the start; records of earlier versions leave it off."""

    name: str
    partitions_count: int
    compression: int
    message_expiry_us: int
    max_topic_size_bytes: int
    replication_factor: int
    chosen_id: int | None = None
    retention: bool = False


class CreateTopicWithSettings(CreateTopic, frozen=True, array_like=True, tag=0x5344_0022):
    """The same with settings from the start, as those of SetTopicSettings: there is no moment without them. Its tag is
    its own: a program that does not know them must not leave them out (docs/adr/0014-topic-settings.md)."""

    settings: tuple[tuple[str, str], ...] = ()


class DeleteTopic(OnTopic, frozen=True, array_like=True, tag=303):
    """With everything in it."""


class UpdateTopic(OnTopic, frozen=True, array_like=True, tag=304):
    """`retention`: it is on from now on, if nobody has said otherwise; records of earlier versions leave it."""

    name: str
    compression: int
    message_expiry_us: int
    max_topic_size_bytes: int
    replication_factor: int
    retention: bool = False


class ChangeTopic(OnTopic, frozen=True, array_like=True, tag=0x5344_0023):
    """UpdateTopic of some of the values; None: what the topic has when the record is applied stays. `retention`: as
    there, of a change that says how much is kept."""

    name: str | None = None
    compression: int | None = None
    message_expiry_us: int | None = None
    max_topic_size_bytes: int | None = None
    replication_factor: int | None = None
    retention: bool = False


class PurgeTopic(OnTopic, frozen=True, array_like=True, tag=305):
    """All messages go; it stays."""


class SetTopicSettings(OnTopic, frozen=True, array_like=True, tag=0x5344_0020):
    """(key, canonical value) of `shardd.protocol.topic_setting_table`; "" takes a key back to the server's default."""

    settings: tuple[tuple[str, str], ...]


class CreatePartitions(OnTopic, frozen=True, array_like=True, tag=402):
    count: int


class DeletePartitions(OnTopic, frozen=True, array_like=True, tag=403):
    """Removes the `count` highest partition ids."""

    count: int


class CreateConsumerGroup(OnTopic, frozen=True, array_like=True, tag=602):
    """`owner`: incarnation of the user for whom it counts, 0: for none, as records of earlier versions say."""

    name: str
    chosen_id: int | None = None
    owner: int = 0


class DeleteConsumerGroup(OnTopic, frozen=True, array_like=True, tag=603):
    group: Ref


class CreateUser(msgspec.Struct, frozen=True, array_like=True, tag=33):
    """`password_hash` is a PHC string."""

    name: str
    password_hash: str
    active: bool
    permissions: Permissions | None


class DeleteUser(msgspec.Struct, frozen=True, array_like=True, tag=34):
    user: Ref


class UpdateUser(msgspec.Struct, frozen=True, array_like=True, tag=35):
    """None: stays as it is."""

    user: Ref
    name: str | None
    active: bool | None


class UpdatePermissions(msgspec.Struct, frozen=True, array_like=True, tag=36):
    user: Ref
    permissions: Permissions | None


class ChangePassword(msgspec.Struct, frozen=True, array_like=True, tag=37):
    """`password_hash` is a PHC string; the current password was checked before. `kept_access`: the access token of the
    user that asked for it, which goes on; b"", as in the records of earlier versions: none does."""

    user: Ref
    password_hash: str
    kept_access: bytes = b""


class CreateToken(msgspec.Struct, frozen=True, array_like=True, tag=42):
    """`digest` of the secret, never the secret. `expires_at_us` 0: never. `tokens_max`: setting of the server.

    `now_us`: the user's tokens that have expired by then are removed first; 0, as in the records of earlier versions,
    removes none.
    """

    user: Ref
    name: str
    digest: bytes
    expires_at_us: int
    tokens_max: int
    now_us: int = 0


class DeleteToken(msgspec.Struct, frozen=True, array_like=True, tag=43):
    user: Ref
    name: str


class RevokeAccessToken(msgspec.Struct, frozen=True, array_like=True, tag=1044):
    """The access token with this id of a door's client is worth nothing any more. Once it has expired by itself nobody
    remembers it: by `now_us`; 0, as in the records of earlier versions: by the time of the record. No wire code."""

    user: Ref
    id: bytes
    expires_at_us: int
    now_us: int = 0


class InitProducer(msgspec.Struct, frozen=True, array_like=True, tag=0x5344_0030):
    """`producer` 0: a new one, whose epoch is 0. Otherwise that one of the user begins its next epoch; with `renew` it
    stays in `epoch`, which has to be its own, and counts as used. `now_us`: when, by the believed clock; 0, as in the
    records of earlier versions: at the time of the record."""

    user: Ref
    producer: int = 0
    epoch: int = 0
    renew: bool = False
    now_us: int = 0


class ExpireProducers(msgspec.Struct, frozen=True, array_like=True, tag=1045):
    """Of every user, those that were renewed last before this time. Made by the server itself: no wire code."""

    before_us: int


class DeleteExpiredTokens(msgspec.Struct, frozen=True, array_like=True, tag=1043):
    """Of every user, what has expired at `now_us` by the believed clock; 0, as in the records of earlier versions: at
    the time of the record. Made by the server itself: no wire code."""

    now_us: int = 0


class PrepareLiftbridge(OnStream, frozen=True, array_like=True, tag=1050):
    """The topics of this native stream are streams of Liftbridge from now on (docs/adr/0092-liftbridge-metadata.md).
    `server_id`: kept when there is none yet. Made by the server itself, as those below: no wire codes."""

    server_id: str


class CreateLiftbridgeStream(CreateTopicWithSettings, frozen=True, array_like=True, tag=1051):
    """A topic that is a stream of Liftbridge from the start: `title` is its name there, which may not be that of the
    topic. `attributes`: (name, value) of its settings as they were asked for."""

    title: str = ""
    subject: str = ""
    queue_group: str = ""
    attributes: tuple[tuple[str, int | bool], ...] = ()


class MarkPartitions(OnTopic, frozen=True, array_like=True):
    """What a change of marks begins with. `partitions` empty: all of them."""

    partitions: tuple[int, ...]


class PauseLiftbridgeStream(MarkPartitions, frozen=True, array_like=True, tag=1052):
    resume_all: bool


class ResumeLiftbridgeStream(OnTopic, frozen=True, array_like=True, tag=1053):
    """A partition; all of them when the pause has said so."""

    partition: int


class SetLiftbridgeReadonly(MarkPartitions, frozen=True, array_like=True, tag=1054):
    readonly: bool


class JoinLiftbridgeGroup(msgspec.Struct, frozen=True, array_like=True, tag=1055):
    """`streams`: (stream, topic) of each, in the order in which the member has named them."""

    user: Ref
    group_name: str
    consumer: str
    streams: tuple[tuple[Ref, Ref], ...]


class LeaveLiftbridgeGroup(msgspec.Struct, frozen=True, array_like=True, tag=1056):
    """`expired`: the server does it, because the member was silent while the group was in `epoch`."""

    group_name: str
    consumer: str
    expired: bool = False
    epoch: int = 0


Command = (
    CreateStream
    | DeleteStream
    | UpdateStream
    | PurgeStream
    | CreateTopic
    | CreateTopicWithSettings
    | DeleteTopic
    | UpdateTopic
    | ChangeTopic
    | PurgeTopic
    | SetTopicSettings
    | CreatePartitions
    | DeletePartitions
    | CreateConsumerGroup
    | DeleteConsumerGroup
    | CreateUser
    | DeleteUser
    | UpdateUser
    | UpdatePermissions
    | ChangePassword
    | CreateToken
    | DeleteToken
    | RevokeAccessToken
    | DeleteExpiredTokens
    | InitProducer
    | ExpireProducers
    | PrepareLiftbridge
    | CreateLiftbridgeStream
    | PauseLiftbridgeStream
    | ResumeLiftbridgeStream
    | SetLiftbridgeReadonly
    | JoinLiftbridgeGroup
    | LeaveLiftbridgeGroup
)


def plain_map(value: object) -> object:
    """`enc_hook` of msgspec: an immutable map as a dict."""
    if isinstance(value, Map):
        return dict(value.items())
    raise NotImplementedError(f"{type(value).__name__} has no place in a command")


def typed_map(kind: Any, value: Any) -> object:
    """`dec_hook` of msgspec: `kind` is `Map[key, value]`, `value` the plain dict that was decoded."""
    key_type, value_type = kind.__args__
    plain: dict[Any, Any] = msgspec.convert(value, dict[key_type, value_type], dec_hook=typed_map)  # type: ignore[valid-type]
    return Map(plain)


_encoder = msgspec.msgpack.Encoder(enc_hook=plain_map)
_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command, dec_hook=typed_map)


def encode_command(command: Command) -> bytes:
    return _encoder.encode(command)


def decode_command(data: bytes | memoryview) -> Command:
    """Raises msgspec.DecodeError (ValidationError included) for anything that is not a command."""
    return _decoder.decode(data)
