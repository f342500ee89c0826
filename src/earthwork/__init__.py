"""Losses that know how classes are arranged: in a row, round a circle, in a hierarchy."""

from earthwork.spaces import Chain, Ring, Space, Tree

__version__ = "0.1.0"

__all__ = ["Chain", "Ring", "Space", "Tree"]
