"""From the requests of the engine to the services, and back."""
