"""Named limits of the classic protocol, each with the section of iggy-protocol that states it."""

from typing import Final

FRAME_LENGTH_MIN: Final = 4  # 1.2: the length field counts the code
CONTROL_PAYLOAD_BYTES_MAX: Final = 10_485_760  # 1.2: every command but SEND_MESSAGES
MESSAGE_PAYLOAD_BYTES_MAX: Final = 64_000_000  # 1.2
USER_HEADERS_BYTES_MAX: Final = 100_000  # 1.2

NAME_BYTES_MAX: Final = 255  # 2.1
USER_NAME_BYTES_MIN: Final = 3  # 2.1
USER_NAME_BYTES_MAX: Final = 50
PASSWORD_BYTES_MIN: Final = 3  # 2.1
PASSWORD_BYTES_MAX: Final = 100
TOKEN_NAME_BYTES_MIN: Final = 3  # 2.1
TOKEN_NAME_BYTES_MAX: Final = 30
NUMERIC_IDENTIFIER_BYTES: Final = 4  # 2.2

PARTITIONS_PER_REQUEST_MAX: Final = 1000  # 3.5, 3.6
MESSAGES_KEY_BYTES_MAX: Final = 255  # 2.4

SERVER_DEFAULT: Final = 0  # 2.6: message_expiry, max_topic_size
UNLIMITED: Final = (1 << 64) - 1  # 2.6: never expires, unlimited size
NOT_LOGGED_IN: Final = (1 << 32) - 1  # 3.1: user id of a client without a login
PARTITION_ID_ABSENT: Final = 0  # 2.1: sent in place of an absent partition id

STREAM_ID_BITS: Final = 12  # iggy-server 1.1: packing of a namespace
TOPIC_ID_BITS: Final = 12
PARTITION_ID_BITS: Final = 20
