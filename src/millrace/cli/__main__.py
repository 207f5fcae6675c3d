"""``python -m millrace``: the command line, where its script is not on the PATH."""

from millrace.cli.app import main

if __name__ == "__main__":
    main()
