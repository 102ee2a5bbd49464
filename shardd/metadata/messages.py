"""What the shards say to each other about metadata: MessagePack arrays over the bus."""

from __future__ import annotations

from typing import Final

import msgspec

from shardd.metadata.commands import Ref

METHOD_SUBMIT: Final = "metadata.submit"  # replica -> shard 0: Submission -> SubmissionAnswer
METHOD_HELLO: Final = "metadata.hello"  # replica -> shard 0: Hello -> HelloAnswer
METHOD_APPLY: Final = "metadata.apply"  # shard 0 -> replica: an encoded record -> empty, when it is applied
METHOD_RESYNC: Final = "metadata.resync"  # shard 0 -> replica: empty -> empty; the replica says hello again


class Submission(msgspec.Struct, array_like=True, frozen=True):
    """`number` is random: a submission that is sent again has the same one. `user`: who it is, not only its id, which
    may belong to somebody else when this arrives. `command`: as `encode_command` makes it."""

    number: int
    user: Ref
    command: bytes


class SubmissionAnswer(msgspec.Struct, array_like=True, frozen=True):
    """`index`: of the record; 0 when refused."""

    status: int
    id: int
    index: int


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """How far a replica is: the index and digest of its last record."""

    index: int
    digest: bytes


class HelloAnswer(msgspec.Struct, array_like=True, frozen=True):
    """The next encoded records. `complete`: these are all there are, the later ones come with METHOD_APPLY.
    `diverged`: the replica has records that shard 0 does not have. `behind`: shard 0 has cut away what it is missing,
    which stands in the snapshot on the disk."""

    records: list[bytes]
    complete: bool
    diverged: bool = False
    behind: bool = False


encode = msgspec.msgpack.Encoder().encode
decode_submission = msgspec.msgpack.Decoder(Submission).decode
decode_submission_answer = msgspec.msgpack.Decoder(SubmissionAnswer).decode
decode_hello = msgspec.msgpack.Decoder(Hello).decode
decode_hello_answer = msgspec.msgpack.Decoder(HelloAnswer).decode
