"""What Spark makes of the options of a table of its catalog (`CREATE TABLE ... USING shardd OPTIONS (...)`). PySpark
4.3 gives them to the source when it asks for the schema, among properties of its own, and at no read and no write of
the table (tests/spark/test_spark_itself.py). Views and `WITH (...)` behind a name give theirs each time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shardd.spark.positions import OptionError

_PROVIDER: Final = "provider"  # a property of each table, and not an option of a load
_PROPERTIES: Final = frozenset({_PROVIDER, "owner", "comment", "collation", "location", "external"})
_AGAIN: Final = "option."  # each option stands under its name and, behind this, once more
_WHERE: Final = (
    "there are no options: Spark keeps none of a catalog table for a Python data source. Write them behind its name, as"
    " FROM t WITH (subscribe 's/t', ...) and INSERT INTO t WITH (topic 's/t', ...), or use CREATE TEMPORARY VIEW t"
    " USING shardd OPTIONS (...)"
)


def own(given: Mapping[str, str]) -> Mapping[str, str]:
    """Without the properties of a table, where it is one."""
    if _PROVIDER not in given:
        return given
    return {
        name: value
        for name, value in given.items()
        if name.lower() not in _PROPERTIES and not name.lower().startswith(_AGAIN)
    }


def check_given(given: Mapping[str, str]) -> None:
    """`OptionError` where there are none at all."""
    if not given:
        raise OptionError(_WHERE)
