"""A SparkSession that finds Java, Python and the data sources by itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shardd.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DISCOVERY: Final = Path(__file__).with_name("discovery")
_PACKAGE_ROOT: Final = Path(__file__).parents[2]
_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.executorEnv.PYTHONSAFEPATH": "1",
}


def prepare_environment() -> None:
    """What the JVM and Spark's Python workers inherit; before the first session of a process."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ["JAVA_HOME"] = str(find_java().home)
    paths = [str(DISCOVERY), str(_PACKAGE_ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in paths if path))
    os.environ["PYTHONSAFEPATH"] = "1"  # Spark starts `python -m ...`: nothing is imported from the current directory


def session(
    master: str = "local[*]", *, name: str = "shardd", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of this process, made when there is none. `NoJavaError`.

    Spark finds the formats by the modules below `discovery`, which are put on PYTHONPATH here (and are installed by a
    wheel).
    """
    prepare_environment()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName(name)
    local = master.startswith("local")
    for key, value in {**_SETTINGS, **(settings or {})}.items():
        if local or key in (settings or {}) or not key.startswith("spark.driver."):
            builder = builder.config(key, value)
    return builder.getOrCreate()


def read(spark: SparkSession, topic: str, *, columns: str | None = None, **options: Any) -> DataFrame:
    """A fresh DataFrame of a topic ("stream/topic"), with only the columns asked for ("offset,value").

    Other options by their names, as `startingOffsets="earliest"`; `start` and `end` are short for `startingOffsets` and
    `endingOffsets`. Each call plans anew: a DataFrame itself always shows the range of its first action.
    """
    reader = spark.read.format("shardd").option("subscribe", topic)
    if columns is not None:
        reader = reader.option("columns", columns)
    short = {"start": "startingOffsets", "end": "endingOffsets"}
    for name, value in options.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        reader = reader.option(short.get(name, name), text)
    return reader.load()
