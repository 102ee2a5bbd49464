"""Which module has which command: the name of its `Family`, or of its typer application."""

from __future__ import annotations

from typing import Final

# imported when they are asked for: `serve` waits for none of them
FAMILIES: Final = {
    "backup": ("shardd.cli.backup", "backup_app"),
    "bench": ("shardd.cli.bench", "bench_app"),
    "client": ("shardd.cli.users", "client_family"),
    "context": ("shardd.cli.contexts", "context_family"),
    "config": ("shardd.cli.config_command", "config_app"),
    "debug": ("shardd.cli.inspect_server", "debug_family"),
    "doctor": ("shardd.cli.doctor.command", "doctor_app"),
    "group": ("shardd.cli.groups", "group_family"),
    "import": ("shardd.cli.import_command", "import_app"),
    "message": ("shardd.cli.messages", "message_family"),
    "offset": ("shardd.cli.groups", "offset_family"),
    "partition": ("shardd.cli.partitions", "partition_family"),
    "pipeline": ("shardd.cli.pipeline_topics", "pipeline_app"),
    "retention": ("shardd.cli.retention", "retention_app"),
    "segment": ("shardd.cli.partitions", "segment_family"),
    "spark": ("shardd.cli.spark_command", "spark_app"),
    "stream": ("shardd.cli.streams", "stream_family"),
    "tls": ("shardd.cli.tls", "tls_app"),
    "token": ("shardd.cli.users", "token_family"),
    "topic": ("shardd.cli.topics", "topic_family"),
    "upgrade": ("shardd.cli.upgrade", "upgrade_app"),
    "user": ("shardd.cli.users", "user_family"),
}

# commands by themselves; the first one begins the list
ALONE: Final = {
    "serve": ("shardd.cli.serve_command", "serve_family"),
    "produce": ("shardd.cli.messages", "flow_family"),
    "consume": ("shardd.cli.messages", "flow_family"),
    "lag": ("shardd.cli.groups", "lag_family"),
    "stats": ("shardd.cli.inspect_server", "server_family"),
    "snapshot": ("shardd.cli.inspect_server", "server_family"),
}
