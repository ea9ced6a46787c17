"""Which tool is right for a task, by the project's own measurements: `indknn advise`."""
