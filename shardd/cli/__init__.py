"""Commands a person types, and the entry points of the processes."""
