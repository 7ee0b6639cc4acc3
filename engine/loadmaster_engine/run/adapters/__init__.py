"""Adapters on a running model: several at once, each for its own requests, coming and going while others are used."""
