"""The protocol of Apache Iggy 0.9 (docs/protocol/iggy-0.9.md): the services of the classic one, other frames."""
