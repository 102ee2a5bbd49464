"""Services for the Liftbridge door: streams, groups and publishes of its clients, and tasks of the server itself."""
