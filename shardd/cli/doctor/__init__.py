"""`shardd doctor`: `command` checks this machine for a server; the commands beside it (`log`, `state`, `root-password`)
read or repair a data directory."""
