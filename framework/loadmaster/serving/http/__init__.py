"""The OpenAI-compatible HTTP server over a `ServingEngine`. Needs the extra `loadmaster[serve]`."""
