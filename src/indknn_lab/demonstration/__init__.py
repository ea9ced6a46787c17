"""`indknn demo`, with its data. A text file in this folder says how the data was made."""
