"""Runs the command as `python -m holdfast.cli`."""

from holdfast.cli import main

main()
