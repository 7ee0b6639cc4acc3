"""The command line. Importing it imports click and nothing heavy; every command brings in what it needs when it runs."""

from __future__ import annotations

import sys


def main() -> None:
    """Run `loadmaster` with the arguments of this process and exit with a public exit code."""
    from loadmaster.cli.program import run

    sys.exit(run(sys.argv[1:]))
