"""The one error of a migration."""


class MigrationError(Exception):
    """The directory cannot be taken over, and nothing in it was changed; the text is a sentence for the operator."""
