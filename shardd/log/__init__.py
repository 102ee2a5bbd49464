"""Python side of the log: directories, recovery before a partition opens, trash. The bytes are the native core's."""
