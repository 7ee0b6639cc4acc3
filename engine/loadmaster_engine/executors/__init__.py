"""Ways to run ranks: `inline` in the caller's process, `multiprocess` in workers forked from one warm server."""
