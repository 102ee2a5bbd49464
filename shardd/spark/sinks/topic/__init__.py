"""format("shardd") for `write` and `writeStream`: the sink that stores rows in a topic (docs/spark.md)."""
