"""Scripts for developers of the project. They are not installed."""
