"""What a person sees of a running server."""
