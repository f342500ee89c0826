"""Trees from WordNet, read from its own files."""

from earthwork.trees.wordnet.build import from_wordnet
from earthwork.trees.wordnet.database import Database, parse_line
from earthwork.trees.wordnet.rules import RULES

__all__ = ["RULES", "Database", "from_wordnet", "parse_line"]
