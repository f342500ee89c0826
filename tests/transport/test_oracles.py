"""Distances and gradients against implementations that are not ours."""

from __future__ import annotations

import numpy as np
import ot
import pytest
import scipy.stats
import torch
from packaging.version import Version

import earthwork as ew
from tests.cases import random_distribution, random_parents, random_tree


@pytest.mark.parametrize("size", [1, 2, 5, 40])
def test_chain_against_scipy(rng, size):
    for _ in range(20):
        places = np.cumsum(rng.random(size) * (rng.random(size) < 0.8))
        chain = ew.Chain(size, np.diff(places))
        p, q = random_distribution(rng, 2, size)
        wasserstein = scipy.stats.wasserstein_distance(places, places, p, q)
        energy = scipy.stats.energy_distance(places, places, p, q)
        torch.testing.assert_close(ew.emd(p, q, chain).item(), wasserstein, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(ew.emd(p, q, chain, 2).item(), energy**2 / 2, rtol=1e-12, atol=1e-14)


TREES = [
    (shape, size, inner) for shape in ("any", "path", "star", "binary") for size in (2, 3, 8, 40) for inner in (0, 1)
]


@pytest.mark.parametrize(("shape", "size", "inner"), TREES)
def test_tree_against_network_simplex(rng, shape, size, inner):
    for _ in range(5):
        tree = random_tree(rng, size, shape, inner_bins=bool(inner))
        p, q = random_distribution(rng, 2, tree.num_bins)
        expected = ot.emd2(p.numpy(), q.numpy(), tree.distances().numpy())
        assert abs(ew.emd(p, q, tree).item() - expected) <= 1e-10


@pytest.mark.parametrize("shape", ["any", "path", "star", "binary"])
def test_tree_gradient_against_duals(rng, shape):
    """Where every edge carries dirt the duals are unique up to a constant."""
    for _ in range(10):
        tree = ew.Tree(random_parents(rng, 20, shape), rng.random(20) + 0.1, bins=rng.permutation(20))
        p, q = random_distribution(rng, 2, 20, zeros=0)
        _, log = ot.emd2(p.numpy(), q.numpy(), tree.distances().numpy(), return_matrix=True, log=True)
        dual = torch.as_tensor(log["u"])
        torch.testing.assert_close(ew.emd_gradient(p, q, tree), dual - dual.mean(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("size", [2, 3, 4, 9, 40])
def test_ring_against_exact_solver(rng, size):
    for _ in range(10):
        ring = ew.Ring(size, rng.random(size))
        p, q = random_distribution(rng, 2, size)
        assert abs(ew.emd(p, q, ring).item() - ot.emd2(p.numpy(), q.numpy(), ring.distances().numpy())) <= 1e-10


@pytest.mark.skipif(Version(ot.__version__) < Version("0.9.6"), reason="older circle solvers of POT are wrong")
@pytest.mark.parametrize("size", [2, 3, 4, 9, 40])
def test_ring_against_circle_solver(rng, size):
    for _ in range(10):
        places = np.sort(rng.random(size))
        ring = ew.Ring(size, np.diff(places, append=places[0] + 1))
        p, q = random_distribution(rng, 2, size)
        expected = ot.wasserstein_circle(
            places[p.numpy() > 0], places[q.numpy() > 0], p.numpy()[p > 0], q.numpy()[q > 0], p=1
        )
        assert abs(ew.emd(p, q, ring).item() - float(expected[0])) <= 1e-10


@pytest.mark.parametrize("rho", [1.0, 1.2, 1.5, 2.0, 3.0, 8.0, 40.0])
def test_ring_against_search_for_circulation(rng, rho):
    for size in (1, 2, 3, 7, 30):
        for _ in range(5):
            weights = rng.random(size) * (rng.random(size) < 0.8)
            p, q = random_distribution(rng, 2, size)
            flow = np.cumsum((p - q).numpy())
            best = scipy.optimize.minimize_scalar(
                lambda c, flow=flow, weights=weights: (weights * np.abs(flow - c) ** rho).sum(),
                bounds=(flow.min() - 1e-9, flow.max() + 1e-9),
                options={"xatol": 1e-13},
            )
            distance = ew.emd(p, q, ew.Ring(size, weights), rho).item()
            at_edges = min((weights * np.abs(flow - c) ** rho).sum() for c in flow)
            torch.testing.assert_close(distance, min(best.fun, at_edges), rtol=1e-9, atol=1e-12)
            assert distance <= min(best.fun, at_edges) * (1 + 1e-14) + 1e-16


def test_tree_at_rho_2_is_half_energy_distance(rng):
    """On any tree, Σ w φ² = E d(P, Q) − ½ E d(P, P') − ½ E d(Q, Q')."""
    for _ in range(20):
        tree = random_tree(rng, 15)
        p, q = random_distribution(rng, 2, tree.num_bins)
        distances = tree.distances()
        energy = p @ distances @ q - p @ distances @ p / 2 - q @ distances @ q / 2
        torch.testing.assert_close(ew.emd(p, q, tree, 2), energy, rtol=1e-10, atol=1e-13)


def test_squared_chain_not_2_wasserstein_distance():
    p, q = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 0.0, 1.0])
    assert ew.emd(p, q, ew.Chain(3), 2) == 2  # the squared 2-Wasserstein distance is 4
