"""First-party plugins. Each is registered through the same entry points as anyone's and imports the contract only."""
