"""What a run did: figures, report, page, live monitor."""
