"""The door for the classic protocol over QUIC (docs/protocol/quic.md)."""
