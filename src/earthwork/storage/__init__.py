"""Spaces from files, names and short specifications, and to files."""

from earthwork.storage.reading import load
from earthwork.storage.writing import save

__all__ = ["load", "save"]
