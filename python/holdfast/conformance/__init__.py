"""Conformance suites, for people who write their own parts of Holdfast and run ours on them."""

from holdfast.conformance import approvers, sandboxes, store

__all__ = ["approvers", "sandboxes", "store"]
