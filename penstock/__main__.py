"""`python -m penstock` is the `penstock` command."""

from penstock.cli import main

main()
