"""The ``millrace`` command."""
