"""The door for clients of Liftbridge."""
