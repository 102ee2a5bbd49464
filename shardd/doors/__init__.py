"""The door's side: a process that the supervisor runs, its connections to the workers, its clients."""
