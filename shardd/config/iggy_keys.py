"""Names of Apache Iggy's settings that this server does not serve (docs/configuration.md#errors): they are told apart
from mistyped ones, so that an Iggy deployment starts with one warning."""

from __future__ import annotations

import re
from typing import Final

# section -> its keys
_NOT_SERVED: Final = {
    "http": "web_ui",
    "http.cors": "allow_private_network",
    "http.jwt": "algorithm valid_issuers valid_audiences not_before encoding_secret decoding_secret use_base64_secret",
    "http.metrics": "endpoint",
    "tcp": "enabled ipv6",
    "quic": "datagram_send_buffer_size send_window",
    "quic.socket": "override_defaults recv_buffer_size send_buffer_size keepalive",
    "telemetry.logs": "transport endpoint",
    "system.backup": "path",
    "system.backup.compatibility": "path",
    "system.state": "enforce_fsync max_file_operation_retries retry_delay",
    "system.logging": "path file_enabled max_file_size max_total_size rotation_check_interval retention "
    "sysinfo_print_interval",
    "system.encryption": "enabled key",
    "system.stream": "path",
    "system.topic": "path",
    "system.partition": "path validate_checksum",
    "system.segment": "archive_expired",
    "system.recovery": "recreate_missing_state",
    "system.memory_pool": "enabled bucket_capacity",
    "websocket": "read_buffer_size write_buffer_size max_write_buffer_size",
}
NOT_SERVED_PATHS: Final = frozenset(
    f"{section}.{name}" for section, names in _NOT_SERVED.items() for name in names.split()
)
_NOT_SERVED_SUFFIXES: Final = frozenset(path.upper().replace(".", "_") for path in NOT_SERVED_PATHS)
# names of Iggy's programs, its tests and its root user: nothing to warn about
_NO_SETTING: Final = re.compile(
    r"CI_BUILD|CONFIG_PATH|ENV_PATH|DISPLAY_CONFIG|ROOT_USERNAME|ROOT_PASSWORD|TEST_.*"
    r"|CONNECTORS_(CONFIG_PATH|SINK_.*|SOURCE_.*)|MCP_CONFIG_PATH"
)


def is_no_setting(suffix: str) -> bool:
    """True for the part after IGGY_ of a variable that Iggy's server does not read as a setting."""
    return _NO_SETTING.fullmatch(suffix) is not None


def is_known_to_iggy(suffix: str) -> bool:
    return suffix in _NOT_SERVED_SUFFIXES
