"""Serving: many requests at once over one loaded model."""
