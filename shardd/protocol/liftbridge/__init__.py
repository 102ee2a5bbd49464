"""The API of Liftbridge: what its messages are, without sockets."""
