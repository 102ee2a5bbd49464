"""What every part of the server stands on: threads, clock, disk, the bus between the shards, figures."""
