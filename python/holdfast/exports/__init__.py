"""Runs for other eyes. Exports only read, and only what is durable leaves."""
