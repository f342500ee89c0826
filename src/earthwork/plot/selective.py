"""Pictures of selective answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from earthwork.metrics.curves import new_axes
from earthwork.metrics.selective import RiskCoverage
from earthwork.plot.evaluation import _colour
from earthwork.text import for_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_risk_coverage(curves: Mapping[str, RiskCoverage], *, ax: Axes | None = None) -> Axes:
    """Draw risk–coverage curves: the risk that remains if the least confident answers are withheld.

    Args:
        curves: The curves by their names, as :func:`~earthwork.metrics.selective.risk_coverage` returns them.
        ax: Where to draw. Default: new axes.

    Example:
        >>> import torch, earthwork as ew
        >>> p = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.7, 0.1], [0.5, 0.1, 0.4], [0.3, 0.3, 0.4]])
        >>> curve = ew.metrics.risk_coverage(p, torch.tensor([0, 1, 2, 2]), ew.Chain(3))
        >>> len(ew.plot.plot_risk_coverage({"model": curve}).lines)
        1
    """
    ax = new_axes(ax, "plot_risk_coverage")
    for place, (name, curve) in enumerate(curves.items()):
        label = f"{for_matplotlib(name)}: area {curve.area.item():.4f}"
        ax.plot(curve.coverage.cpu(), curve.risk.cpu(), color=_colour(place), label=label)
    ax.set(xlabel="coverage", ylabel="risk", xlim=(0, 1), title="Risk by coverage")
    ax.set_ylim(bottom=0)
    ax.grid(alpha=0.25)
    ax.legend(frameon=False, fontsize=8)
    return ax
