"""Spaces from files, names and short specifications, and to files."""

from earthwork.storage.reading import load, load_tree
from earthwork.storage.writing import save

__all__ = ["load", "load_tree", "save"]
