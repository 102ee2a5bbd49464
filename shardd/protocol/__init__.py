"""Sans-IO codecs of the classic protocol and the error taxonomy. Knows no sockets and no shards."""
