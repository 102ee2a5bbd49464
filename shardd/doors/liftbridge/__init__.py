"""The door for clients of Liftbridge: gRPC, and NATS."""
