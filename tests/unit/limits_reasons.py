"""Numbers of docs/limits.md that stand in no constant of their row: those that follow from constants, by their
formulas, and those that nothing in the sources says, by the reasons. Rows are named by their first cells."""

from __future__ import annotations

from typing import Final, NamedTuple


class Formula(NamedTuple):
    """`expression`: of constants that the file says or imports."""

    file: str
    expression: str


_LIMITS: Final = "shardd/protocol/limits.py"
_PLACES: Final = "shardd/dispatch/door/places.py"
FORMULAS: Final[dict[str, dict[str, Formula]]] = {
    "`FRAME_BOUNDS_MAX`": {"1,000": Formula("shardd/protocol/bounds.py", "TOPICS_MAX")},
    "stream ids, `STREAM_ID_BITS`": {"4,096": Formula(_LIMITS, "1 << STREAM_ID_BITS")},
    "topic ids, `TOPIC_ID_BITS`": {"4,096": Formula(_LIMITS, "1 << TOPIC_ID_BITS")},
    "partition ids, `PARTITION_ID_BITS`": {"1,048,576": Formula(_LIMITS, "1 << PARTITION_ID_BITS")},
    "`ASIDE_BYTES_MAX`, `ASIDE_BYTES_MIN`": {"4,096": Formula(_PLACES, "ASIDE_BYTES_MAX // ASIDE_BYTES_MIN")},
    "`BEGUN_BYTES_MAX`, `BEGUN_OF_USER_BYTES_MAX`": {
        "4,096": Formula(_PLACES, "BEGUN_BYTES_MAX // ASIDE_BYTES_MIN"),
        "1,024": Formula(_PLACES, "BEGUN_OF_USER_BYTES_MAX // ASIDE_BYTES_MIN"),
    },
    "`LATENCY_BUCKETS`": {"2^30 us": Formula("native/src/net/net.h", "1 << (LATENCY_BUCKETS - 2)")},
    "`TASKS_MAX`": {"4,096": Formula("shardd/metadata/producers.py", "PRODUCERS_OF_USER_MAX")},
    "numbers in `backup.json`": {"12": Formula(_LIMITS, "STREAM_ID_BITS")},
}

MEASURED: Final = "measured once"
LAYOUT: Final = "the size of a struct, or of a field of a format"
STATUSES: Final = "statuses"
KERNEL: Final = "of the kernel"
LIBRARY: Final = "of a library"
EXAMPLE: Final = "what follows from a number beside it, told for readers"
ELSEWHERE: Final = "a number without a name, in another file"
SPECIAL: Final = "a value that means something else"

UNCHECKED: Final[dict[str, dict[str, str]]] = {
    "`FRAME_PERMISSIONS_MAX`": {"32,768": EXAMPLE, "12 bytes": LAYOUT, "41": STATUSES},
    "`FRAME_BOUNDS_MAX`": {"131,072": EXAMPLE},
    "first bytes of a connection": {"8": LAYOUT},
    "a connection of 0.9, `conn_large`": {"1.3 KiB": LAYOUT},
    "ids of 0.9 whose connection has ended, `KEPT_MAX`": {"544 bytes": LAYOUT},
    "records of a SEND of 0.9": {"16": LAYOUT},
    "answer of a POLL of 0.9": {"4 GiB": LAYOUT},
    "memory of a connection over TLS": {
        "50 KiB": MEASURED,
        "15 KiB": MEASURED,
        "16 KiB": LIBRARY,
        "64 KiB": ELSEWHERE,
    },
    "a window": {"4 KiB": LAYOUT},
    "`login_attempts_max`": {"42": STATUSES, "47": STATUSES, "20": STATUSES, "54": STATUSES},
    "`UPGRADE_BYTES_MAX`, `UPGRADE_LINE_BYTES`, `UPGRADE_HEADERS_MAX`": {"1.1 KiB": LAYOUT},
    "`ACCEPT_BACKOFF_US`": {"16": ELSEWHERE},
    "private input memory: unfinished frames, parked unread bytes": {"1/8": ELSEWHERE},
    "unsent bytes in the kernel": {"4 MiB": KERNEL, "512 KiB": MEASURED},
    "owner does not know the partition yet": {"10 ms": EXAMPLE},
    "`POOL_BLOCK_MIN`, `POOL_BLOCK_MAX`": {"256 MiB": EXAMPLE, "64 MiB": EXAMPLE},
    "`ROUTE_KEY_MAX`": {"257 bytes": LAYOUT},
    "`FEW_MAX`": {"20,000": MEASURED, "50 MB": MEASURED},
    "partitions that routes share": {"32 bytes": LAYOUT},
    "fences": {"16 bytes": LAYOUT},
    "bytes of a segment": {"4 GiB": LAYOUT, "32": LAYOUT},
    "batches in one write": {"1,024": KERNEL},
    "waiting polls, `WAITING_POLL_PARTITIONS_MAX`, `POLL_WAIT_MAX_MS`": {"800 bytes": LAYOUT},
    "`UNPACKED_BYTES_MAX`, `UNPACKED_FETCHES_MAX`": {"64 KiB": LAYOUT},
    "scrubber": {"1.25 s": EXAMPLE, "75": EXAMPLE},
    "ids of messages that are remembered (`message_deduplication`)": {"36 bytes": LAYOUT},
    "`PRODUCERS_OF_PARTITION_MAX`, `PRODUCERS_OF_WORKER_MAX`": {"2 KiB": LAYOUT},
    "consumers with a stored offset": {"64": LAYOUT, "128 bytes": LAYOUT, "128": LAYOUT},
    "`FILE_PATH_MAX`": {"64": ELSEWHERE},
    "import of a Liftbridge directory": {"64 MB": ELSEWHERE},
    "import of an Apache Iggy directory": {"2,000": MEASURED, "14 s": MEASURED},
    "`DELETIONS_SENT_MAX`": {"0": SPECIAL},
    "objects that one garbage collection looks at, `THRESHOLDS`": {
        "10,000": MEASURED,
        "25 MB": MEASURED,
        "13 ms": MEASURED,
        "100,000": MEASURED,
    },
    "log lines of the supervisor in a snapshot, `LOGS_TIMEOUT_S`": {"32 KiB": ELSEWHERE},
    "client id": {"32": LAYOUT},
    "`_HELPER_THREADS`, `_PASSWORD_THREADS`": {"19 MiB": LIBRARY},
    "an answer that a client takes, `_PIECE_BYTES`": {"32": LAYOUT},
    "`METADATA_ENTRIES_MAX`, `SETTINGS_MS`, `BEFORE_CALL_BYTES_MAX`, `SHUT_OUT_S`": {"16 MiB": LIBRARY},
    "a match of a subject": {"4,096": MEASURED, "35 MB": MEASURED},
    "`RECORDS_MAX`": {"56 bytes": LAYOUT},
    "answers of Redis and NATS": {"511 bytes": LAYOUT},
}
