"""`python -m indknn`, the same as the command."""

from indknn.cli import main

if __name__ == "__main__":
    main()
