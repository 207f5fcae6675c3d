"""The script ``millrace``, and ``python -m millrace.cli`` where that is not on the PATH."""

import sys

from millrace.errors import MissingExtra, require


def main() -> None:
    """Run the command line."""
    try:
        require("cli", "the command line", "rich", "typer")
    except MissingExtra as error:
        sys.exit(f"error: {error}")
    from millrace.cli.app import app

    app()


if __name__ == "__main__":
    main()
