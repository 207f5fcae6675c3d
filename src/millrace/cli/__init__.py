"""What users type: ``millrace sql``, ``doctor``, ``demo`` and ``cache``.

The invariant: whatever goes wrong is one message on standard error and an exit code, 2 for usage, 1 for a
failure, 130 for Ctrl-C; standard output has results alone.
"""
