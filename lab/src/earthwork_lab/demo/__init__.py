"""``earthwork demo``: the same network and the same accuracy, with milder mistakes and with intervals."""

from earthwork_lab.demo.diamonds import Graded, run
from earthwork_lab.demo.pictures import draw
from earthwork_lab.demo.story import CODE, tell

__all__ = ["CODE", "Graded", "draw", "run", "tell"]
