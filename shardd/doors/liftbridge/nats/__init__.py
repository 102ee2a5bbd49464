"""NATS at the Liftbridge door (docs/protocol/nats.md): a link to a NATS server, or a NATS server of the door itself."""
