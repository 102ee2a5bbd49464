"""A blocking client of a server: what the commands of `shardd` need of one."""

from shardd.client.connection import ClientError, Connection, RefusedError

__all__ = ["ClientError", "Connection", "RefusedError"]
