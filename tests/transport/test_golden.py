"""Published values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import earthwork as ew
from tests.cases import GOLDEN


def ellyvan() -> tuple[torch.Tensor, torch.Tensor, ew.Tree]:
    case = GOLDEN["figure_1_ellyvan"]
    names = [*case["leaves"], "animal", "vehicle"]
    parents = [-1] * len(names)
    for child, parent in case["edges"]:
        parents[names.index(child)] = names.index(parent)
    return torch.tensor(case["p"]), torch.tensor(case["q"]), ew.Tree(parents, bins=range(4), names=names)


@pytest.mark.parametrize("rho", [1, 2])
def test_figure_1(rho):
    p, q, tree = ellyvan()
    expected = torch.tensor(GOLDEN["figure_1_ellyvan"][f"gradient_rho{rho}"])
    p.requires_grad_()
    ew.emd(p, q, tree, rho).backward()
    torch.testing.assert_close(p.grad, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(ew.emd_gradient(p, q, tree, rho), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", GOLDEN["chain_scipy"]["cases"])
def test_chains_of_scipy(case):
    u, v, u_mass, v_mass, expected = case
    places = np.unique([*u, *v])
    p, q = (torch.zeros(len(places), dtype=torch.float64) for _ in range(2))
    for row, values, masses in ((p, u, u_mass), (q, v, v_mass)):
        row[np.searchsorted(places, values)] += torch.tensor(masses, dtype=torch.float64)
    distance = ew.emd(p, q, ew.Chain(len(places), np.diff(places)), normalize="l1")
    torch.testing.assert_close(distance.item(), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("rho", [1, 2])
def test_mean_over_batch(rho):
    case = GOLDEN["chain_rho2_mean"]
    loss = ew.EMDLoss(ew.Chain(4), rho, normalize=None)
    value = loss(torch.tensor(case["p"]), torch.tensor(case["labels"]))
    torch.testing.assert_close(value.item(), case[f"rho{rho}_mean"], rtol=1e-6, atol=0)


def test_masses_other():
    case = GOLDEN["chain_unnormalised"]
    p, q = (torch.tensor(case[x], dtype=torch.float64) for x in "pq")
    assert ew.emd(p, q, ew.Chain(4)) == case["work"]


def test_ring():
    case = GOLDEN["ring"]
    places = np.unique([*case["u"], *case["v"]])
    ring = ew.Ring(len(places), np.diff(places, append=places[0] + 1))
    p, q = (torch.zeros(len(places), dtype=torch.float64) for _ in range(2))
    p[np.searchsorted(places, case["u"])] = 1 / 4
    q[np.searchsorted(places, case["v"])] = 1 / 4
    for turn in range(len(places)):
        turned = ew.Ring(len(places), ring.costs.roll(turn))
        distance = ew.emd(p.roll(turn), q.roll(turn), turned)
        torch.testing.assert_close(distance.item(), case["distance"], rtol=1e-12, atol=0)


@pytest.mark.parametrize("pair", GOLDEN["tree_unifrac"]["distances"])
def test_trees_of_unifrac(pair):
    # (((((OTU1:0.5,OTU2:0.5):0.5,OTU3:1.0):1.0):0.0,(OTU4:0.75,OTU5:0.75):1.25):0.0)root;
    case = GOLDEN["tree_unifrac"]
    # nodes: OTU1 to OTU5, root, (1, 2), (1, 2, 3), the lone parent of that, (4, 5), all
    parents = [6, 6, 7, 9, 9, -1, 7, 8, 10, 10, 5]
    costs = [0.5, 0.5, 1.0, 0.75, 0.75, 0.0, 0.5, 1.0, 0.0, 1.25, 0.0]
    tree = ew.Tree(parents, costs, bins=range(5))
    p, q = (torch.tensor(case["counts"][x], dtype=torch.float64) for x in pair)
    distance = ew.emd(p, q, tree, normalize="l1")
    torch.testing.assert_close(distance.item(), case["distances"][pair], rtol=1e-10, atol=0)
