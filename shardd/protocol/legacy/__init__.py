"""Client generations before the classic protocol on the same frames (docs/protocol/legacy.md): how they are told apart,
their requests as the typed ones that services take, and their answers. Sans-IO."""
