"""Named limits of the classic protocol. Where each one counts: docs/protocol/framing.md#sizes for frames and messages,
docs/protocol/primitives.md for the rest.
"""

from typing import Final

FRAME_LENGTH_MIN: Final = 4  # the length field counts the code
CONTROL_PAYLOAD_BYTES_MAX: Final = 10_485_760  # every command but SEND_MESSAGES
MESSAGE_PAYLOAD_BYTES_MAX: Final = 64_000_000
USER_HEADERS_BYTES_MAX: Final = 100_000
POLLED_BYTES_MAX: Final = 8_388_608  # of an answer that Python makes, but one message: it is in memory as a whole

NAME_BYTES_MAX: Final = 255
USER_NAME_BYTES_MIN: Final = 3
USER_NAME_BYTES_MAX: Final = 50
PASSWORD_BYTES_MIN: Final = 3
PASSWORD_BYTES_MAX: Final = 100
TOKEN_NAME_BYTES_MIN: Final = 3
TOKEN_NAME_BYTES_MAX: Final = 30
NUMERIC_IDENTIFIER_BYTES: Final = 4

U32_MAX: Final = (1 << 32) - 1
U64_MAX: Final = (1 << 64) - 1
PARTITIONS_PER_REQUEST_MAX: Final = 1000
MESSAGES_KEY_BYTES_MAX: Final = 255

SERVER_DEFAULT: Final = 0  # message_expiry, max_topic_size
UNLIMITED: Final = (1 << 64) - 1  # never expires, unlimited size
NOT_LOGGED_IN: Final = (1 << 32) - 1  # user id of a client without a login
PARTITION_ID_ABSENT: Final = 0  # sent in place of an absent partition id

STREAM_ID_BITS: Final = 12  # packing of a namespace: docs/protocol/records.md#placement
TOPIC_ID_BITS: Final = 12
PARTITION_ID_BITS: Final = 20
