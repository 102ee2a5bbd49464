"""The commands of the classic protocol, one module per family. Live on the shard that holds the connection."""
