"""Commands for researchers. They join the `indknn` command as entry points."""
