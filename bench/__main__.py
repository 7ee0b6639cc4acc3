"""`python -m bench`."""

from bench.main import main

main()
