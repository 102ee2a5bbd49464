"""What is in a lake table, to a reader that is not Spark."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.spark.sink_child import options_of
from tests.spark.support import Topic

KINDS = ("delta", "iceberg", "parquet")


def table_of(kind: str, directory: Path) -> pa.Table:
    """What deltalake, pyiceberg or a listing of the directory shows."""
    if kind == "delta":
        from deltalake import DeltaTable

        return DeltaTable(str(directory / "table")).to_pyarrow_table()
    if kind == "iceberg":
        from pyiceberg.catalog import load_catalog

        options = options_of(kind, directory)
        catalog = {name.removeprefix("catalog."): value for name, value in options.items() if name != "table"}
        return load_catalog("default", **catalog).load_table("space.rows").scan().to_arrow()
    files = sorted((directory / "table").glob("batch=*/*.parquet"))
    return pa.concat_tables(pq.read_table(file, partitioning=None) for file in files)


def faults(table: pa.Table, topic: Topic) -> list[str]:
    """What is missing, doubled or different."""
    columns = (table.column(name).to_pylist() for name in ("partition", "offset", "value"))
    found = Counter(zip(*columns, strict=True))
    wanted = topic.rows()
    doubled = [f"{key[:2]} came {count} times" for key, count in found.items() if count > 1]
    missing = [f"{key[:2]} is missing" for key in wanted - found.keys()]
    return doubled + missing + [f"{key[:2]} was never sent" for key in found.keys() - wanted]
