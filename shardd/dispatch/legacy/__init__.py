"""Client generations before the classic protocol (docs/protocol/legacy.md): who they are, and their commands."""
