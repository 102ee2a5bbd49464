"""One worker process: its life, and the partitions that it owns."""
