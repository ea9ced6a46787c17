"""A store in a schema of a PostgreSQL database."""
