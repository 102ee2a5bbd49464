"""The classic protocol (docs/protocol): its commands, decoded for the services, and their answers, encoded."""
