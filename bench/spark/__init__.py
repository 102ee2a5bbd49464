"""The Spark side of shardd against Spark's own Parquet reader and writer."""
