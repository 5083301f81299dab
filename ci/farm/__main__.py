"""``python -m farm``."""

from farm.cli import main

main()
