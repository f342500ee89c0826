"""``python -m earthwork``: the command line, for launchers such as torchrun that start modules."""

from earthwork.cli import main

if __name__ == "__main__":
    main()
