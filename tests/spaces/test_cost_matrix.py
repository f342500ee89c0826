"""`CostMatrix`: any ground cost, checked once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import earthwork as ew
from tests.cases import random_space

MATRIX = [[0.0, 2.0, 5.0], [2.0, 0.0, 4.0], [5.0, 4.0, 0.0]]


def test_facts():
    metric = ew.CostMatrix(MATRIX)
    assert metric.num_bins == 3
    assert metric.matrix.dtype == torch.float64
    assert torch.equal(metric.distances(), torch.tensor(MATRIX, dtype=torch.float64))
    assert metric.diameter() == 5
    assert repr(metric) == "CostMatrix(3 bins, costs to 5)"
    assert torch.equal(metric.distance(torch.tensor([[0], [1]]), torch.tensor([1, 2])), metric.matrix[:2, 1:])


@pytest.mark.parametrize("make", [np.array, torch.tensor, lambda m: torch.tensor(m).long(), lambda m: m])
def test_takes_arrays_tensors_and_lists(make):
    distances = ew.CostMatrix(make(MATRIX)).distances()
    assert distances.is_floating_point()
    assert torch.equal(distances.double(), torch.tensor(MATRIX, dtype=torch.float64))


def test_matrix_may_one_way_shortcuts_unless_asked():
    one_way = [[0.0, 1.0], [2.0, 0.0]]
    assert ew.CostMatrix(one_way).distance(1, 0) == 2
    detour = [[0, 9, 1], [9, 0, 1], [1, 1, 0]]
    assert ew.CostMatrix(detour, symmetric=True).diameter() == 9


@pytest.mark.parametrize("kind", ["chain", "ring", "tree"])
def test_distances_of_other_spaces_are_metrics(kind, rng):
    space = random_space(rng, kind, 30)
    metric = ew.CostMatrix(space.distances(), symmetric=True, triangle=True)
    assert torch.equal(metric.distances(), space.distances())


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[0.0, 1.0]], r"matrix: expected a square matrix of at least one bin, got shape \(1, 2\)"),
        ([0.0, 1.0], r"matrix: expected a square matrix of at least one bin, got shape \(2,\)"),
        (np.zeros((0, 0)), r"matrix: expected a square matrix of at least one bin, got shape \(0, 0\)"),
        ([[0.0, -1.0], [1.0, 0.0]], "matrix: expected finite costs ≥ 0, got -1 from bin 0 to bin 1"),
        ([[0.0, 2e30], [1.0, 0.0]], r"matrix: expected costs up to 1e\+30, got 2e\+30 from bin 0 to bin 1"),
        ([[0.0, 1.0], [float("nan"), 0.0]], "matrix: expected finite costs ≥ 0, got nan from bin 1 to bin 0"),
        ([[0.0, float("inf")], [1.0, 0.0]], "matrix: expected finite costs ≥ 0, got inf from bin 0 to bin 1"),
        ([[0.0, 1.0], [1.0, 3.0]], "matrix: expected a diagonal of 0, got 3 from bin 1 to itself"),
    ],
)
def test_what_is_not_ground_cost(matrix, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        ew.CostMatrix(matrix)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ("roads", "matrix: expected a square matrix of real numbers, got 'roads'"),
        ([[0.0, 1.0], [1.0]], r"matrix: expected a square matrix of real numbers, got \[\[0.0, 1.0\], \[1.0\]\]"),
        ("x" * 58, f"matrix: expected a square matrix of real numbers, got '{'x' * 58}'"),
        ("x" * 59, rf"matrix: expected a square matrix of real numbers, got '{'x' * 59}"),
        (torch.zeros(2, 2, dtype=torch.complex64), r"matrix: expected real numbers, got torch\.complex64"),
        (np.zeros((2, 2), dtype=complex), "matrix: expected real numbers, got complex128"),
        ([[0, 1j], [1j, 0]], r"matrix: expected a square matrix of real numbers, got \[\[0, 1j\], \[1j, 0\]\]"),
        (torch.zeros(2, 2, dtype=torch.bool), r"matrix: expected real numbers, got torch\.bool"),
    ],
)
def test_what_is_not_matrix_of_numbers(matrix, message):
    with pytest.raises(TypeError, match=f"^{message}$"):
        ew.CostMatrix(matrix)


def test_bins_that_one_and_same_break_no_rule():
    assert ew.CostMatrix(torch.zeros(3, 3), symmetric=True, triangle=True).diameter() == 0


def test_names_first_asymmetry():
    matrix = torch.tensor(MATRIX)
    matrix[2, 1] = 4.5
    with pytest.raises(
        ValueError, match=r"^matrix: expected a symmetric matrix, got 4 from bin 1 to bin 2 and 4\.5 back$"
    ):
        ew.CostMatrix(matrix, symmetric=True)


def test_names_first_detour_that_is_shorter():
    message = r"^matrix: expected the triangle inequality, got 9 from bin 0 to bin 1 but 1 \+ 3 by way of bin 2$"
    with pytest.raises(ValueError, match=message):
        ew.CostMatrix([[0, 9, 1], [9, 0, 3], [1, 3, 0]], triangle=True)


@pytest.mark.parametrize("block", [1, 900, 2**22])
def test_triangle_check_goes_block_by_block(rng, monkeypatch, block):
    points = rng.random((20, 3))
    matrix = np.linalg.norm(points[:, None] - points, axis=-1)
    monkeypatch.setattr("earthwork.spaces.cost_matrix._BLOCK", block)
    ew.CostMatrix(matrix, triangle=True)
    matrix[15, 3] += 1
    with pytest.raises(ValueError, match="from bin 15 to bin 3 but"):
        ew.CostMatrix(matrix, triangle=True)


@pytest.mark.parametrize("name", ["flow", "potential", "costs", "num_edges"])
def test_has_no_edges(name):
    assert not hasattr(ew.CostMatrix(MATRIX), name)


def test_bins_out_of_range():
    with pytest.raises(ValueError, match=r"^i: expected bin indices from 0 to 2, got -1$"):
        ew.CostMatrix(MATRIX).distance(-1, 0)
    with pytest.raises(ValueError, match=r"^j: expected bin indices from 0 to 2, got 3$"):
        ew.CostMatrix(MATRIX).distance(0, 3)


def test_writing_into_distances_not_change_space():
    for space in (ew.Chain(3), ew.Ring(3), ew.Tree([-1, 0, 0, 0]), ew.CostMatrix(1 - np.eye(3))):
        before = space.distances()
        space.distances().fill_diagonal_(torch.inf)
        assert torch.equal(space.distances(), before)
