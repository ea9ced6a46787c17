"""Makes pictures, a report and tables from result files. It reads JSON and runs no experiments."""
