"""What to answer when a model is unsure: the answer whose expected distance to the truth is least."""

from earthwork.decisions.decide import decide, decide_top_k
from earthwork.decisions.expected_distance import expected_distance

__all__ = ["decide", "decide_top_k", "expected_distance"]
