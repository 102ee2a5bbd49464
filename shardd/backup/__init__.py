"""Backups of a data directory: made beside a running or stopped server from its files alone, checked, restored."""
