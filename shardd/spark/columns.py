"""The columns of the source: names, types, and how the decoder calls them. The first seven are those of Spark's Kafka
source. Shared by the planner (Spark types as text) and the decoder (Arrow types)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
HEADERS_TYPE: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)


@dataclass(frozen=True, slots=True)
class Column:
    """`letter`: what the native decoder calls it; '' for a value that all rows of a partition share."""

    name: str
    sql: str
    arrow: pa.DataType
    letter: str = ""


ALL: Final = {
    column.name: column
    for column in (
        Column("key", "binary", pa.binary(), "k"),
        Column("value", "binary", pa.binary(), "v"),
        Column("topic", "string", pa.string()),
        Column("partition", "int", pa.int32()),
        Column("offset", "bigint", pa.int64(), "o"),
        Column("timestamp", "timestamp", _TIMESTAMP, "t"),
        Column("timestampType", "int", pa.int32()),
        Column("headers", "array<struct<key:string,value:binary>>", HEADERS_TYPE, "h"),
        Column("stream", "string", pa.string()),
        Column("originTimestamp", "timestamp", _TIMESTAMP, "g"),
        Column("originTimestampRaw", "bigint", pa.int64(), "g"),
        Column("id", "binary", pa.binary(), "i"),
        Column("checksum", "bigint", pa.int64(), "c"),
        Column("headersRaw", "binary", pa.binary(), "r"),
        Column("checksumOk", "boolean", pa.bool_(), "b"),
    )
}
_BY_NAME_ONLY: Final = {"headers", "checksum", "headersRaw", "checksumOk", "originTimestampRaw"}
SHOWN_BELOW_US: Final = 253_370_764_800_000_000  # year 9999: Python's and Spark's times end there
LOG_APPEND_TIME: Final = 1  # timestampType, as in Kafka


class UnknownColumnError(ValueError):
    """A column that the source does not have; the message names the closest one."""


def default_names(*, include_headers: bool = False, report_checksums: bool = False) -> tuple[str, ...]:
    """Names of the default schema, in order."""
    extra = {"headers"} if include_headers else set()
    names = [name for name in ALL if name not in _BY_NAME_ONLY or name in extra]
    return (*names, "checksumOk") if report_checksums else tuple(names)


def check_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names, or `UnknownColumnError`; each at most once."""
    checked: list[str] = []
    for name in names:
        if name not in ALL:
            close = difflib.get_close_matches(name, ALL, 1)
            hint = f"; did you mean '{close[0]}'?" if close else f"; there are {', '.join(ALL)}"
            raise UnknownColumnError(f"the source shardd has no column '{name}'{hint}")
        if name in checked:
            raise UnknownColumnError(f"column '{name}' is asked for twice")
        checked.append(name)
    if not checked:
        raise UnknownColumnError("no column is asked for")
    return tuple(checked)


def sql_schema(names: Iterable[str]) -> str:
    """The schema as Spark reads it from text."""
    return ", ".join(f"`{name}` {ALL[name].sql}" for name in names)


def arrow_schema(names: Iterable[str]) -> pa.Schema:
    """The schema of the batches; every field is nullable, as Spark demands."""
    return pa.schema([pa.field(name, ALL[name].arrow) for name in names])
