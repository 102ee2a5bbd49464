"""The statuses of the protocol by number, with their names (docs/protocol/statuses.md)."""

from __future__ import annotations

from typing import Final

NAMES: Final[dict[int, str]] = {
    0: "ok",
    1: "error",
    2: "invalid_configuration",
    3: "invalid_command",
    4: "invalid_format",
    5: "feature_unavailable",
    6: "invalid_identifier",
    8: "disconnected",
    10: "cannot_create_base_directory",
    11: "cannot_create_runtime_directory",
    12: "cannot_remove_runtime_directory",
    13: "cannot_create_state_directory",
    14: "state_file_not_found",
    15: "state_file_corrupted",
    16: "invalid_state_entry_checksum",
    20: "resource_not_found",
    30: "stale_client",
    40: "unauthenticated",
    41: "unauthorized",
    42: "invalid_credentials",
    43: "invalid_username",
    44: "invalid_password",
    46: "user_already_exists",
    47: "user_inactive",
    48: "cannot_delete_user",
    49: "cannot_change_permissions",
    50: "invalid_personal_access_token_name",
    51: "personal_access_token_already_exists",
    52: "personal_access_tokens_limit_reached",
    54: "personal_access_token_expired",
    55: "users_limit_reached",
    59: "request_already_applied",
    72: "cannot_decrypt_data",
    73: "invalid_jwt_algorithm",
    74: "invalid_jwt_secret",
    76: "cannot_generate_jwt",
    78: "invalid_access_token",
    79: "cannot_fetch_jwks",
    80: "invalid_size_bytes",
    82: "invalid_number_encoding",
    100: "client_not_found",
    101: "invalid_client_id",
    1000: "cannot_create_streams_directory",
    1001: "cannot_create_stream_directory",
    1006: "cannot_create_stream",
    1008: "cannot_delete_stream_directory",
    1009: "stream_id_not_found",
    1011: "stream_directory_not_found",
    1012: "stream_name_already_exists",
    1013: "invalid_stream_name",
    1019: "invalid_topic_size",
    2001: "cannot_create_topic_directory",
    2006: "cannot_create_topic",
    2008: "cannot_delete_topic_directory",
    2010: "topic_id_not_found",
    2012: "topic_id_already_exists",
    2013: "topic_name_already_exists",
    2014: "invalid_topic_name",
    2015: "too_many_partitions",
    2018: "invalid_replication_factor",
    2019: "invalid_partitions_count",
    2020: "topic_directory_not_found",
    3000: "cannot_create_partition",
    3001: "cannot_create_partitions_directory",
    3002: "cannot_create_partition_directory",
    3004: "cannot_read_partitions",
    3006: "cannot_delete_partition_directory",
    3007: "partition_not_found",
    3009: "topic_full",
    3011: "cannot_delete_consumer_offset_file",
    3020: "cannot_read_consumer_offsets",
    3021: "consumer_offset_not_found",
    3022: "not_resolved_consumer",
    3023: "cannot_open_consumer_offsets_file",
    4000: "segment_not_found",
    4007: "cannot_save_index_to_segment",
    4009: "invalid_messages_count",
    4010: "cannot_append_message",
    4011: "cannot_read_message",
    4017: "too_big_user_headers",
    4022: "too_big_message_payload",
    4027: "invalid_message_checksum",
    4028: "invalid_key_value_length",
    4031: "non_zero_offset",
    4032: "non_zero_timestamp",
    4033: "missing_index",
    4034: "invalid_indexes_byte_size",
    4035: "invalid_indexes_count",
    4036: "invalid_messages_size",
    4039: "invalid_batch_checksum",
    4041: "unsupported_option_key",
    4042: "invalid_option_value",
    4043: "options_block_too_large",
    4100: "invalid_offset",
    4101: "invalid_reserved_field",
    4102: "unexpected_offset",
    4103: "consumer_name_taken",
    5000: "consumer_group_id_not_found",
    5001: "consumer_group_id_already_exists",
    5004: "consumer_group_name_already_exists",
    5005: "invalid_consumer_group_name",
    5006: "consumer_group_member_not_found",
    5009: "consumer_group_partition_not_owned",
    9000: "snapshot_file_completion_failed",
    10000: "cannot_serialize_resource",
    10001: "cannot_deserialize_resource",
    10002: "cannot_read_file",
    10003: "cannot_read_file_metadata",
    10004: "cannot_seek_file",
    10005: "cannot_append_to_file",
    10006: "cannot_write_to_file",
    10007: "cannot_overwrite_file",
    10008: "cannot_delete_file",
    10009: "cannot_sync_file",
    10010: "cannot_read_index_offset",
    10011: "cannot_read_index_position",
    10012: "cannot_read_index_timestamp",
    11001: "shard_communication_error",
    12000: "cannot_bind_to_socket",
    12001: "task_timeout",
    13000: "io_error",
    14001: "invalid_session",
}
"""Those that this server answers, and those that clients of it may meet elsewhere."""

REMEDIES: Final = {
    3023: "the partition has as many stored offsets as it may have, or their file cannot be opened; `shardd offset "
    "list STREAM TOPIC --unused 30d` tells the forgotten ones, `shardd offset delete` frees their places",
}
"""What the name does not say, and what helps."""

INVALID_COMMAND: Final = 3
INVALID_FORMAT: Final = 4
FEATURE_UNAVAILABLE: Final = 5
STREAM_NOT_FOUND: Final = 1009
TOPIC_NOT_FOUND: Final = 2010
TOO_MANY_PARTITIONS: Final = 2015
PARTITION_NOT_FOUND: Final = 3007
OFFSET_NOT_RESOLVED: Final = 3022
GROUP_NOT_FOUND: Final = 5000
OFFSET_BEHIND_THE_END: Final = 4100
MEMBER_NOT_FOUND: Final = 5006
INVALID_MESSAGE_CHECKSUM: Final = 4027  # the message at which a poll starts is damaged
CANNOT_READ_FILE: Final = 10002  # the device does not give the message at which a poll starts, or the stored offset
UNREADABLE: Final = frozenset({INVALID_MESSAGE_CHECKSUM, CANNOT_READ_FILE})  # they say nothing of other messages
LOST_ON_THE_WAY: Final = 11001  # between the server's own processes
TIMED_OUT: Final = 12001
TOPIC_FULL: Final = 3009
NOT_WRITTEN: Final = 10006
NOT_SYNCED: Final = 10009  # what was written may be there
OTHER_HISTORY: Final = 4102  # of store_position
CONSUMER_NAME_TAKEN: Final = 4103  # of poll_position and store_position
AUTHENTICATION: Final = frozenset({20, 40, 42, 43, 44, 47, 54})  # 20: of a login with a token
PERMISSION: Final = frozenset({41})
NOT_FOUND: Final = frozenset({20, 100, 1009, 2010, 3007, 3021, 5000, 5006})
ALREADY_EXISTS: Final = frozenset({46, 51, 1011, 1012, 2012, 2013, 5001, 5004})
UNAVAILABLE: Final = frozenset({8, 30, 10008, 11001, 12001})
STORAGE: Final = frozenset({3009, 3011, 3023, 4007, 4027, 10002, 10006, 10009})
ENDS_SESSION: Final = frozenset({8, 30, 40})  # come unasked: the connection closes, the request was not carried out
