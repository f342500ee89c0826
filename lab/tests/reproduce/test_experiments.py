from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import earthwork as ew
from earthwork_lab.reproduce import EXPERIMENTS, Results, convergence, ellyvan, gradients, stability, timing
from earthwork_lab.reproduce.figures import LOSS_COLOURS, NEUTRAL, band_series, figures
from earthwork_lab.reproduce.plots import COLOURS
from lab.tests.reproduce.tiny import STABILITY


@pytest.fixture(scope="module")
def results(tiny_results: Path) -> dict[str, Results]:
    return {name: Results.load(tiny_results / f"{name}.json") for name in EXPERIMENTS}


def test_all_experiments_end_with_summary(results: dict[str, Results]) -> None:
    assert all(entry.complete for entry in results.values())


def test_figure_1_is_as_printed() -> None:
    found = ellyvan.measure(ellyvan.Settings())
    assert max(found["largest_error"].values()) < 1e-12
    assert (found["emd"], found["emd2"]) == pytest.approx((0.9, 0.19))


@pytest.fixture(scope="module")
def checked() -> dict[str, Any]:
    return ellyvan.measure_equations(ellyvan.Settings())


def test_printed_hessian_n_squared_too_large(checked: dict[str, Any]) -> None:
    assert checked["hessian"]["printed_over_true"] == pytest.approx(16)
    assert checked["hessian"]["ours_error"] < 1e-12


def test_closed_forms_of_linear_programme(checked: dict[str, Any]) -> None:
    assert checked["linear_programme_error"] < 1e-9


def test_printed_tree_gradient_right_on_chain_wrong_on() -> None:
    p, q = ellyvan.random_distributions(2, 5, seed=0)
    # A chain whose bins hang one below the other, the last one at the root: the printed sum over 1..i is right there.
    chain = ew.Tree([1, 2, 3, 4, -1], bins=[0, 1, 2, 3, 4])
    torch.testing.assert_close(
        ellyvan.tree_gradient_as_printed(chain, p, q, 2.0), ew.emd_gradient(p, q, chain, rho=2), rtol=0, atol=1e-12
    )
    tree = ellyvan.space(ellyvan.Settings())
    printed = ellyvan.tree_gradient_as_printed(tree, p[:4] / p[:4].sum(), q[:4] / q[:4].sum(), 2.0)
    true = ew.emd_gradient(p[:4] / p[:4].sum(), q[:4] / q[:4].sum(), tree, rho=2)
    assert (printed - true).abs().max() > 0.1


def test_algorithm_1_minimises_objective_with_sign(checked: dict[str, Any]) -> None:
    found = checked["sinkhorn"]
    assert found["excess_with_printed_sign"] > 0 > found["excess_with_other_sign"]
    assert found["sweeps_made"] > found["limit"]
    assert abs(found["sum_of_printed_gradient"]) > 0.1


def test_facts_of_tree(checked: dict[str, Any]) -> None:
    tree = stability.paper_tree()
    distances = tree.distances() + 100 * torch.eye(1000)
    assert checked["tree"] == {
        "nodes": 1374,
        "diameter": 19.0,
        "smallest_distance": distances.min().item(),
        "diameter_in_hops": 26.0,
    }


def test_sinkhorn_best_on_small_spaces_small_ratios() -> None:
    settings = stability.Settings(pairs=3, sizes=(4, 30), ratios=(1.0, 100.0))
    found = stability.measure_conditions(settings)
    assert sum(found["by_size"]["4"]) < sum(found["by_size"]["30"])
    assert max(found["by_ratio"]["1"]) < min(found["by_ratio"]["100"])


@pytest.mark.parametrize(
    ("a", "b", "degrees"), [((1, 0), (0, 2), 90), ((1, 1), (2, 2), 0), ((1, 0), (-3, 0), 180), ((1, 0), (1, 1), 45)]
)
def test_angles(a: tuple[float, float], b: tuple[float, float], degrees: float) -> None:
    assert gradients.angle(torch.tensor(a), torch.tensor(b)).item() == pytest.approx(degrees, abs=1e-9)


def test_gradients_derivatives_of_their_losses() -> None:
    settings = gradients.Settings(bins=12, max_iter=2000)
    p, q = gradients.distributions(settings)
    assert (p.sum().item(), q.sum().item()) == pytest.approx((1, 1))
    found = gradients.gradients(p, q, settings)
    leaf = p.clone().requires_grad_()
    torch.nn.functional.mse_loss(leaf, q).backward()
    assert leaf.grad is not None
    torch.testing.assert_close(found["MSE"], leaf.grad - leaf.grad.mean())
    assert all(abs(gradient.sum().item()) < 1e-9 for gradient in found.values())


def test_stability_compares_with_earth_movers_distance() -> None:
    found = stability.measure(STABILITY, "edges", 10.0)
    tree = stability.paper_tree()
    p, q = stability.draw_pairs(STABILITY, 1000)
    value = ew.sinkhorn(p, q, tree, lam=10.0, max_iter=100, method="paper").value
    expected = (value / ew.emd(p, q, tree)).tolist()
    assert found["float64, 100 iterations"]["ratio"] == pytest.approx(expected)
    assert set(found) == set(stability.lines(STABILITY))


@pytest.mark.parametrize("lam", [0.1, 3.0, 30.0, 1000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_run_algorithm_1_gives_limit_exactly(lam: float, dtype: torch.dtype) -> None:
    tree = ew.trees.cifar10()
    p, q = (x.to(dtype) for x in stability.draw_pairs(STABILITY, 10))
    limits = [1, 700, 10, 33, 701]
    for limit, found in zip(limits, stability.algorithm_1_at(p, q, tree, lam, limits), strict=True):
        expected = ew.sinkhorn(p, q, tree, lam=lam, max_iter=limit, method="paper")
        torch.testing.assert_close(found, (expected.value, expected.gradient), rtol=0, atol=0, equal_nan=True)


def test_iterations_that_repeat_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    sweeps = []
    sweep = stability.sweep
    monkeypatch.setattr(stability, "sweep", lambda *rest: sweeps.append(1) or sweep(*rest))
    p, q = stability.draw_pairs(STABILITY, 10)
    stability.algorithm_1_at(p, q, ew.trees.cifar10(), 1.0, [10**9, 10])
    assert 10 < len(sweeps) < 10000


def test_unit_of_costs_only_scales_lambda() -> None:
    settings = stability.Settings(pairs=1, iterations=(10,), reference=10, log_iterations=10)
    in_edges, scaled = stability.measure(settings, "edges", 0.1), stability.measure(settings, "unit", 1.9)
    assert scaled["reference"]["ratio"] == pytest.approx(in_edges["reference"]["ratio"])


def test_timing_has_row_for_each_of_papers(results: dict[str, Results]) -> None:
    seconds = results["timing"].summary["seconds"]
    rows = timing.rows(timing.Settings())
    assert set(timing.PRINTED) <= set(rows)
    assert all(entry["median"] > 0 for entry in seconds.values())


def test_loss_that_is_not_finite_ends_run(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = convergence.Settings(epochs=20, per_class=1, hidden=8, score_every=1)
    monkeypatch.setattr(convergence, "build", lambda *_: lambda logits, labels: logits.sum() * float("nan"))
    curve = convergence.measure(settings, "CE", 0.1, 0)
    assert len(curve["train_emd"]) == 2
    assert np.isnan(curve["train_emd"][-1])


def test_more_iterations_algorithm_1_change_nothing() -> None:
    tree = convergence.paper_tree()
    torch.manual_seed(0)
    logits, labels = 4 * torch.randn(8, tree.num_bins), torch.randint(tree.num_bins, (8,))
    found = []
    for max_iter in (convergence.Settings().max_iter, 50):
        loss = convergence.build("SD as printed", tree, convergence.Settings(max_iter=max_iter))
        leaf = logits.clone().requires_grad_()
        value = loss(leaf, labels)
        value.backward()
        found.append((value.detach(), leaf.grad))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-7)


def test_made_up_features_follow_tree() -> None:
    tree = ew.trees.cifar10()
    settings = convergence.Settings(features=4000, per_class=1, noise=0.0)
    train, _, labels = convergence.make_data(tree, settings, seed=0)
    assert labels.tolist() == list(range(10))
    squared = torch.cdist(train, train).square()
    ratio = squared[~torch.eye(10, dtype=torch.bool)] / tree.distances()[~torch.eye(10, dtype=torch.bool)]
    assert ratio.std() / ratio.mean() < 0.1


def test_figure_axes_legend_and_description(results: dict[str, Results]) -> None:
    for entry in results.values():
        for chart in figures(entry):
            assert chart.title
            assert chart.y_label
            assert chart.alt
            assert chart.x_label or chart.kind == "bar"
            assert all(len(s.y) == len(s.x or chart.x) for s in chart.series)


def test_loss_has_one_colour_everywhere(results: dict[str, Results]) -> None:
    seen: dict[str, set[int | None]] = {}
    for entry in results.values():
        for chart in figures(entry):
            for series in chart.series:
                seen.setdefault(series.name, set()).add(series.colour)
    losses = {name: colours for name, colours in seen.items() if name in LOSS_COLOURS}
    assert {"EMD²", "CE", "SD", "MSE", "½ EMD² + ½ CE"} <= set(losses)
    assert all(colours == {LOSS_COLOURS[name]} for name, colours in losses.items())
    others = {colour for name, colours in seen.items() if name not in LOSS_COLOURS for colour in colours}
    assert not others & set(LOSS_COLOURS.values()) - {LOSS_COLOURS["SD"]}
    assert max(LOSS_COLOURS.values()) < NEUTRAL < len(COLOURS)


@pytest.mark.parametrize(("count", "drawn"), [(2, False), (3, True)])
def test_bands_need_three_runs(count: int, drawn: bool) -> None:
    series = band_series("EMD²", {"mean": [1.0], "low": [0.5], "high": [1.5]}, count)
    assert (series.low is not None, series.high is not None) == (drawn, drawn)


def test_papers_times_only_beside_own_batch(results: dict[str, Results]) -> None:
    timed = results["timing"]
    assert timed.settings["batch"] != timing.PRINTED_BATCH
    assert not any("paper" in series.name for series in figures(timed)[0].series)
    same = Results("timing", {**timed.settings, "batch": 512}, summary=timed.summary)
    assert any("paper" in series.name for series in figures(same)[0].series)


def test_figures_are_written_as_svg_and_png(results: dict[str, Results], tmp_path: Path) -> None:
    from earthwork_lab.reproduce.plots import save_figures

    files = [path for name in ("ellyvan", "timing", "breathing") for path in save_figures(results[name], tmp_path)]
    names = ("ellyvan", "chain", "timing", "breathing-squares", "breathing-softmax")
    assert {path.name for path in files} == {f"{name}.{kind}" for name in names for kind in ("svg", "png")}
    assert all(path.stat().st_size > 1000 for path in files)
