"""The script ``millrace``, and ``python -m millrace.cli`` where that is not on the PATH."""

import sys

from millrace.errors import MissingExtra, require


def main() -> None:
    """Run the command line."""
    try:
        require("cli", "the command line", "rich", "typer")
        from millrace.cli.app import app
    except MissingExtra as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:  # while it loads; later commands say so themselves
        sys.exit(130)
    app()


if __name__ == "__main__":
    main()
