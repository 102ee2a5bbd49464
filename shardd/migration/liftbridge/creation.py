"""The records that create an imported stream."""

from __future__ import annotations

import secrets
import string
from typing import Final

from shardd.metadata.commands import CreateLiftbridgeStream, CreateStream, PrepareLiftbridge, Ref
from shardd.metadata.offline import OfflineMetadata
from shardd.metadata.state import Stream
from shardd.protocol.limits import UNLIMITED
from shardd.protocol.primitives import Compression
from shardd.protocol.topic_setting_table import SETTINGS_OF_NEW

_SIGNS: Final = string.ascii_letters + string.digits
_SERVER_ID_SIGNS: Final = 22

# what the settings of the stream were nobody has told: what was kept there is kept
_KEEP: Final = (("retentionMaxAge", 0), ("retentionMaxBytes", 0), ("retentionMaxMessages", 0))


def home_of(metadata: OfflineMetadata, namespace: str, server_id: str = "") -> Stream:
    """The native stream whose topics are streams of Liftbridge; made when it is missing. `server_id`: how clients know
    this server, unless it has a name already; "": a new one. OfflineError."""
    if namespace not in metadata.state.stream_ids:
        metadata.submit(CreateStream(namespace))
    stream = metadata.state.streams[metadata.state.stream_ids[namespace]]
    if metadata.state.liftbridge.home is None:
        server_id = server_id or "".join(secrets.choice(_SIGNS) for _ in range(_SERVER_ID_SIGNS))
        metadata.submit(PrepareLiftbridge(Ref(stream.id, stream.incarnation), server_id))
    return metadata.state.streams[stream.id]


def creation_of(home: Ref, name: str, subject: str, partitions: int) -> CreateLiftbridgeStream:
    """Its topic has the same name."""
    return CreateLiftbridgeStream(
        home,
        name,
        partitions,
        Compression.NONE,
        UNLIMITED,
        UNLIMITED,
        1,
        retention=True,
        settings=SETTINGS_OF_NEW,
        title=name,
        subject=subject,
        attributes=_KEEP,
    )
