"""The processes of a running server: supervisor and workers, and what they say to each other."""
