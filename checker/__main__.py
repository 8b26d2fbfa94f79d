"""`python -m checker` is `check-states`."""

from checker.cli import main

main()
