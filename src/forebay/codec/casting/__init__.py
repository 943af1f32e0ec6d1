"""User data cast to exactly what a table stores."""
