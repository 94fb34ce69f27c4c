"""The command line. Exit codes: 0 done, 1 error, 2 usage, 3 a check failed, 4 the run waits for someone."""

from holdfast.cli.main import app_for, main

__all__ = ["app_for", "main"]
