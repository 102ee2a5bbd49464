"""Clients of the server: a blocking connection on the classic wire."""

from shardd.client.connection import Connection, ConnectionFailedError, Credentials, RefusedError

__all__ = ["Connection", "ConnectionFailedError", "Credentials", "RefusedError"]
