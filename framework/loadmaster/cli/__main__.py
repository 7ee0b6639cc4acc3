"""`python -m loadmaster.cli`, the same as the `loadmaster` command."""

from __future__ import annotations

from loadmaster.cli import main

if __name__ == "__main__":
    main()
