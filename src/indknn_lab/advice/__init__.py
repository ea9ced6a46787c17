"""`indknn advise`: which tool is right for a task, according to the project's own measurements."""
