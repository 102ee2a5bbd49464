"""Opens data directories of other servers: Apache Iggy 0.8. One way; the messages stay where they are."""
