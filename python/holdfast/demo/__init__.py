"""The demonstration: real processes, a real kill, a payment provider with books of its own."""

from holdfast.demo.play import main

__all__ = ["main"]
