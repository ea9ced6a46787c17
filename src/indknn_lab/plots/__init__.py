"""From result files to pictures, a report and tables. Reads JSON, runs nothing."""
