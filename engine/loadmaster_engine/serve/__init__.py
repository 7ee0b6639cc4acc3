"""Serving in the host: which sequence runs when, and which block holds what. No torch and no numpy."""
