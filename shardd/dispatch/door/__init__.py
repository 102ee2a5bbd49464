"""What a worker offers to doors (docs/protocol/doors.md): clients, sessions and every command, over their sockets."""
