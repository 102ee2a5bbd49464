"""The supervisor of a running server."""
