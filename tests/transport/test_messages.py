"""The whole text of errors: the argument's name first, what was expected, what was given, and nothing else."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import torch

import earthwork as ew
from earthwork.ops.masses import as_distributions, check_distributions, check_masses
from earthwork.ops.operations import Kernels, choose

CHAIN = ew.Chain(3)
MATRIX = ew.CostMatrix(CHAIN.distances())
P, Q = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])
DOUBLE = 2 * P
BAD = torch.tensor([[0.5, 0.5, 0.0], [1.0, -0.5, 0.5]])
REMEDY = 'for logits pass normalize="softmax", for other masses normalize="l1"'
PROBABILITIES = "expected probabilities, ≥ 0 and of sum 1 in each row, got"


def solve(**options):
    return lambda: ew.sinkhorn(P, P, CHAIN, **options)


PAIRS = {
    "p: expected a tensor, got list": lambda: ew.emd([1.0], P, CHAIN),
    "q: expected a tensor, got list": lambda: ew.emd(P, [1.0], CHAIN),
    "p: expected floating point masses, got torch.int64; use p.float()": lambda: ew.emd(P.long(), P, CHAIN),
    "q: expected floating point masses, got torch.int64; use q.float()": lambda: ew.emd(P, P.long(), CHAIN),
    f"p: expected a last axis of 3, the bins of {CHAIN}, got shape (2,)": lambda: ew.emd(P[:2], P, CHAIN),
    f"q: expected a last axis of 3, the bins of {CHAIN}, got shape ()": lambda: ew.emd(P, P[0], CHAIN),
    "p and q: expected shapes that broadcast together, got (3, 3) and (2, 3)": lambda: ew.emd(P.expand(3, 3), Q, CHAIN),
    "space: expected a Chain, Ring, Tree or CostMatrix, got int": lambda: ew.emd(P, P, 3),
    "p: expected finite masses ≥ 0, got -0.5 in bin 1 of row 1": lambda: ew.emd(BAD, P, CHAIN),
    "q: expected finite masses ≥ 0, got -0.5 in bin 1": lambda: ew.emd(P, BAD[1], CHAIN),
    "p and q: expected rows of equal mass, got 1 in p and 2 in q of row 1; "
    'normalize="l1" divides both by their mass': lambda: ew.emd(P, torch.stack([P, DOUBLE]), CHAIN),
    "input and target: expected rows of equal mass, got 1 in input and 2 in target; "
    "for votes or counts divide target by its sum over the classes": lambda: check_masses(
        P, DOUBLE, P.dtype, ("input", "target")
    ),
    "input and target: expected rows of equal mass, got 1 in input and 0 in target; "
    "leave out rows without a target with mask": lambda: check_masses(P, 0 * P, P.dtype, ("input", "target")),
    'input and target: expected rows of equal mass, got 2 in input and 0 in target; normalize="l1" divides both by '
    "their mass": lambda: check_masses(DOUBLE, 0 * P, P.dtype, ("input", "target")),
    'p: expected some mass in each row to normalise by "l1", got none': lambda: ew.emd(0 * P, P, CHAIN, normalize="l1"),
    'q: expected some mass in each row to normalise by "l1", got none of row 1': lambda: ew.emd(
        P, torch.stack([P, 0 * P]), CHAIN, normalize="l1"
    ),
    'normalize: expected None, "l1" or "softmax", got \'l2\'': lambda: ew.emd(P, P, CHAIN, normalize="l2"),
    "p and q: expected masses whose distance at rho = 50 is in the range of torch.float32; "
    'pass float64, or normalize="l1" for a mass of 1': lambda: ew.emd(100 * P, 100 * P.flip(0), CHAIN, 50),
}
DISTRIBUTIONS = {
    f"p: {PROBABILITIES} a sum of 2; {REMEDY}": lambda: as_distributions(DOUBLE, CHAIN),
    f"x: {PROBABILITIES} a sum of 2 of row 1; {REMEDY}": lambda: as_distributions(
        torch.stack([P, DOUBLE]), CHAIN, name="x"
    ),
    f"x: {PROBABILITIES} a sum of 2 of row 11; divide": lambda: check_distributions(
        torch.stack([P, DOUBLE]), "x", remedy="divide", first_row=10
    ),
    f"p: {PROBABILITIES} a sum of 2 of row (0, 1); {REMEDY}": lambda: check_distributions(
        torch.stack([P, DOUBLE])[None]
    ),
    f"p: {PROBABILITIES} -0.5 in bin 1 of row 6; {REMEDY}": lambda: check_distributions(BAD, first_row=5),
    f"p: {PROBABILITIES} nan in bin 2": lambda: check_distributions(torch.tensor([0.5, 0.5, torch.nan])),
    f"p: {PROBABILITIES} inf in bin 0 of row 1": lambda: check_distributions(
        torch.stack([P, torch.tensor([torch.inf, 0, 0])])
    ),
    "p: expected floating point probabilities, got torch.int64; use p.float()": lambda: as_distributions(
        P.long(), CHAIN
    ),
    'y: expected some mass in each row to normalise by "l1", got none': lambda: as_distributions(
        0 * P, CHAIN, "l1", name="y"
    ),
    'normalize: expected None, "l1" or "softmax", got 1': lambda: as_distributions(P, CHAIN, 1),
}
SOLVERS = {
    "lam: expected a finite number > 0, got 0": solve(lam=0),
    "lam: expected a finite number > 0, got inf": solve(lam=torch.inf),
    "lam: expected a finite number > 0, got '3'": solve(lam="3"),
    "lam: expected a finite number > 0, got True": solve(lam=True),
    "tol: expected None or a finite number > 0, got 0": solve(tol=0),
    "tol: expected None or a finite number > 0, got '1'": solve(tol="1"),
    "max_iter: expected a whole number ≥ 1, got 0": solve(max_iter=0),
    "max_iter: expected a whole number ≥ 1, got 1.0": solve(max_iter=1.0),
    "max_iter: expected a whole number ≥ 1, got True": solve(max_iter=True),
    "chunk_size: expected a whole number ≥ 1, got 0": solve(chunk_size=0),
    "chunk_size: expected a whole number ≥ 1, got '1'": solve(chunk_size="1"),
    'method: expected "log" or "paper", got \'other\'': solve(method="other"),
    f"space: expected a Chain, Ring or Tree, whose edges have a flow, got {MATRIX}": lambda: ew.emd_hessian(
        P, P, MATRIX
    ),
    "p and q: expected both, because the Hessian depends on them at rho = 3": lambda: ew.emd_hessian(
        None, None, CHAIN, 3
    ),
    "p and q: expected both, because the Hessian depends on them at rho = 2": lambda: ew.emd_hessian(P, None, CHAIN),
    "p and q: expected mass to cross every edge at rho = 1.5 < 2, where there is no Hessian otherwise, got none on "
    "edge 1": lambda: ew.emd_hessian(P, torch.tensor([0.25, 0.5, 0.25]), CHAIN, 1.5),
    "p and q: expected mass to cross every edge at rho = 1 < 2, where there is no Hessian otherwise, got none on "
    "edge 0 of row 1": lambda: ew.emd_hessian(P, torch.tensor([[0.0, 0.5, 0.5], [0.5, 0.0, 0.5]]), CHAIN, 1),
}


@pytest.mark.parametrize("errors", [PAIRS, DISTRIBUTIONS, SOLVERS], ids=["pairs", "distributions", "solvers"])
def test_whole_message(errors):
    for text, call in errors.items():
        with pytest.raises((ValueError, TypeError), match=f"^{re.escape(text)}$"):
            call()


def test_label_that_kernel_finds_out_of_range(monkeypatch):
    logits, labels = torch.rand(100, 3), torch.zeros(100, dtype=torch.int64)
    route = choose(CHAIN, logits)
    assert isinstance(route, Kernels)
    run = SimpleNamespace(labels=lambda *_: (torch.zeros(100), None, False, 1.0, torch.zeros(()), 0.0))
    monkeypatch.setattr(route, "run", run)
    text = "target: expected class indices in range, got one that was changed during the call"
    with pytest.raises(ValueError, match=f"^{text}$"):
        ew.EMDLoss(CHAIN)(logits, labels)


def test_solver_that_does_not_converge():
    text = "sinkhorn: 2 iterations did not reach tol = 1e-12; raise max_iter or tol, or lower lam"
    with pytest.warns(ew.ConvergenceWarning, match=f"^{re.escape(text)}$"):
        ew.sinkhorn(P, Q, CHAIN, max_iter=2, tol=1e-12)


@pytest.mark.parametrize("space", [MATRIX, CHAIN], ids=["programme", "Sinkhorn"])
def test_second_derivative_of_solver(space):
    p = P.double().requires_grad_()
    value = ew.emd(p, Q, space) if space is MATRIX else ew.sinkhorn(p, Q, space).value
    (slope,) = torch.autograd.grad(value.sum(), p, create_graph=True)
    text = "a solver's duals give the first derivative of the distance, and not the second"
    with pytest.raises(NotImplementedError, match=f"^{text}$"):
        slope.sum().backward()
