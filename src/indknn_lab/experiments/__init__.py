"""Every table and figure of the paper: configuration in, result files out. Nothing here plots."""
