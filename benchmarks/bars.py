"""What was promised, and whether it holds."""

from __future__ import annotations

from typing import Any, NamedTuple


class Bar(NamedTuple):
    """A figure that should not be larger (or, for a speed-up, smaller) than promised."""

    work: str
    figure: float
    promised: float
    unit: str = "×"
    at_least: bool = False

    @property
    def holds(self) -> bool:
        """Whether the promise is kept."""
        return self.figure >= self.promised if self.at_least else self.figure <= self.promised


def bars(results: dict[str, Any]) -> list[Bar]:
    """The promises, with the figures of a run. Ratios are those of medians."""

    def ratio(table: str, ours: str, theirs: str) -> float:
        times = results[table]
        return float(times[ours]["median"] / times[theirs]["median"])

    tree, chain = "tree, 512 × 1000", "chain, 512 × 1000"
    found = [
        Bar("EMDLoss, rho=2, 512 × 1000 / cross entropy", ratio(tree, "EMDLoss, rho=2", "F.cross_entropy"), 2.0),
        Bar("EMDLoss, rho=1, 512 × 1000 / cross entropy", ratio(tree, "EMDLoss, rho=1", "F.cross_entropy"), 2.5),
        Bar("EMDLoss, rho=1.5, 512 × 1000 / cross entropy", ratio(tree, "EMDLoss, rho=1.5", "F.cross_entropy"), 6.0),
        Bar(
            "the same with rho=2 by the portable path / cross entropy",
            ratio(tree, "EMDLoss, rho=2, portable path", "F.cross_entropy"),
            8.0,
        ),
        Bar("emd on a chain, rho=2, 512 × 1000 / MSE", ratio(chain, "emd, rho=2", "F.mse_loss"), 2.0),
    ]
    for bins in (10, 60):
        name = f"chain, 64 × {bins}"
        found += [
            Bar(f"emd on a chain, 64 × {bins} / cumsum by hand", ratio(name, "emd", "cumsum by hand"), 1.0),
            Bar(
                f"EMDLoss on a chain, 64 × {bins} / softmax and cumsum by hand",
                ratio(name, "EMDLoss", "softmax and cumsum by hand"),
                1.0,
            ),
        ]
    found.append(
        Bar(
            "100 Sinkhorn iterations / EMD², both with the gradient",
            ratio("Sinkhorn, tree, 512 × 1000", "sinkhorn, 100 iterations", "emd, rho=2"),
            500.0,
            at_least=True,
        )
    )
    return found + _large(results) + _first(results) + _decisions(results["decisions"])


def _large(results: dict[str, Any]) -> list[Bar]:
    growth = results["growth"]
    million = growth["1000000"]
    ours = {size: times["EMDLoss, tree"]["median"] for size, times in growth.items() if int(size) >= 1000}
    return [
        Bar(
            "EMDLoss, 16 × 1,000,000 / cross entropy",
            million["EMDLoss, tree"]["median"] / million["F.cross_entropy"]["median"],
            3.0,
        ),
        Bar("its memory at most beyond the logits / the logits", results["memory"]["EMDLoss"], 3.0),
        Bar("growth of the time for each class, 10³ to 10⁶", max(ours.values()) / ours["1000"], 2.5),
    ]


def _first(results: dict[str, Any]) -> list[Bar]:
    start = results["start"]
    return [
        Bar("import earthwork, after torch", start["import"], 0.2, "s"),
        Bar("first call, kernels on disk", start["first call, kernels on disk"], 0.5, "s"),
        Bar("first call, nothing on disk", start["first call, nothing on disk"], 8.0, "s"),
    ]


def _decisions(times: dict[str, Any]) -> list[Bar]:
    found = []
    for space in ("tree", "chain", "ring"):
        product, ours = (times[f"{name}, {space} float32, 512 × 1000"] for name in ("p @ D", "expected_distance"))
        figure = product["median"] / ours["median"]
        found.append(Bar(f"p @ D / expected_distance, {space}, 512 × 1000", figure, 5.0, at_least=True))
    return found
