"""The door for HTTP: JSON requests and answers (docs/protocol/http.md)."""
