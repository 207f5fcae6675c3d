"""What only the session can say: tables, schemas, functions, settings, errors."""
