"""An Initial Study of Overheads of Eddies (Deshpande 2004): wall-clock runs on Wisconsin tables."""
