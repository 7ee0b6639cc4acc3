"""Tuning: how many requests a machine should compute at once with a plan, measured and kept for serving."""
