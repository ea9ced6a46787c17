"""How each method is tuned and measured: one file per kind of unit, from plain parameters to a plain result."""
