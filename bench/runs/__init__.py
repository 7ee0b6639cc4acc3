"""One script per contestant. Each is run as a fresh process for every round and prints one line of JSON."""
