"""Why a server does not start."""


class StartupError(Exception):
    """The text is a sentence for the person who started the server."""
