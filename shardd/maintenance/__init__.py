"""Work in the background of a worker, beside the requests of clients."""
