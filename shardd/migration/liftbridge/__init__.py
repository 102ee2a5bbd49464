"""Imports a data directory of Liftbridge (docs/adr/0095-liftbridge-import.md): `importer` runs the import."""
