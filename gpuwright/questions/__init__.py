"""Programs that run inside an engine's own environment and ask its code; never imported here."""
