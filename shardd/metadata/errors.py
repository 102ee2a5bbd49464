"""Errors of the files of the metadata."""

from __future__ import annotations


class LogError(Exception):
    """The log or the snapshot cannot be used; the text is a sentence for the operator."""
