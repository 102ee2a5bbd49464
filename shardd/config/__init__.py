"""Typed, frozen settings: defaults < file < environment < command line (docs/configuration.md). A worker gets them
ready-made and imports `schema` alone: nothing is imported here."""
