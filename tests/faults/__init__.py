"""Fault tests: real processes, real files, real kills."""
