"""Expected distances against the matrix that they avoid."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import earthwork as ew
from tests.cases import KINDS, distributions, random_distribution, random_space, spaces


@pytest.fixture(params=["kernel", "torch"])
def route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to compute: the compiled kernel for any size, and torch alone."""
    monkeypatch.setattr("earthwork.ops.operations.MIN_ENTRIES_EXPECTED", 0 if request.param == "kernel" else 2**62)
    return str(request.param)


def test_routes(route: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    from earthwork.kernels.cpu import run

    calls = []
    kernel = run.expectations
    monkeypatch.setattr(run, "expectations", lambda *args: calls.append(args) or kernel(*args))
    for kind in KINDS:
        space = random_space(rng, kind, 9)
        ew.expected_distance(random_distribution(rng, 3, space.num_bins), space)
    assert len(calls) == (len(KINDS) if route == "kernel" else 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 301])
def test_equals_matrix_product(route: str, kind: str, size: int, rng: np.random.Generator) -> None:
    space = random_space(rng, kind, size)
    p = random_distribution(rng, 5, 7, space.num_bins)
    torch.testing.assert_close(ew.expected_distance(p, space), p @ space.distances(), atol=1e-10, rtol=0)


@given(data=st.data(), space=spaces())
def test_equals_matrix_product_everywhere(data: st.DataObject, space: ew.Space) -> None:
    p = data.draw(distributions(space.num_bins))
    scale = float(space.distances().max())
    torch.testing.assert_close(
        ew.expected_distance(p, space), p @ space.distances(), atol=1e-10 * max(scale, 1), rtol=0
    )


@pytest.mark.parametrize("kind", KINDS)
def test_any_mass_without_validation(route: str, kind: str, rng: np.random.Generator) -> None:
    space = random_space(rng, kind, 40)
    x = torch.from_numpy(rng.normal(size=(20, space.num_bins)))
    result = ew.expected_distance(x, space, validate=False)
    torch.testing.assert_close(result, x @ space.distances(), atol=1e-10, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision_keeps_its_type(route: str, kind: str, dtype: torch.dtype, rng: np.random.Generator) -> None:
    space = random_space(rng, kind, 60)
    p = random_distribution(rng, 33, space.num_bins).to(dtype)
    result = ew.expected_distance(p, space)
    assert result.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(result.double(), p.double() @ space.distances(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_not_contiguous(route: str, kind: str, rng: np.random.Generator) -> None:
    space = random_space(rng, kind, 20)
    p = random_distribution(rng, 18, space.num_bins)
    strided = p.T.contiguous().T
    assert not strided.is_contiguous() or space.num_bins == 1
    torch.testing.assert_close(ew.expected_distance(strided, space), ew.expected_distance(p, space))
    assert ew.expected_distance(p[:0], space).shape == (0, space.num_bins)


@pytest.mark.parametrize("kind", KINDS)
def test_derivatives(route: str, kind: str, rng: np.random.Generator) -> None:
    space = random_space(rng, kind, 8)
    p = random_distribution(rng, 3, space.num_bins).requires_grad_()

    def function(x: torch.Tensor) -> torch.Tensor:
        return ew.expected_distance(x, space, validate=False).square()

    assert torch.autograd.gradcheck(function, p, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, p)
    rows = torch.vmap(lambda row: ew.expected_distance(row, space))(p.detach())
    torch.testing.assert_close(rows, p.detach() @ space.distances())


def test_one_hot_target_distance_expected_distance_to(rng: np.random.Generator) -> None:
    for kind in KINDS:
        space = random_space(rng, kind, 30)
        p = random_distribution(rng, 40, space.num_bins)
        labels = torch.from_numpy(rng.integers(0, space.num_bins, 40))
        one_hot = torch.nn.functional.one_hot(labels, space.num_bins).double()
        risk = ew.expected_distance(p, space).gather(-1, labels[:, None]).squeeze(-1)
        torch.testing.assert_close(ew.emd(p, one_hot, space), risk, atol=1e-10, rtol=0)


@pytest.mark.parametrize("shape", ["random", "path", "star", "chain", "ring"])
def test_hundred_thousand_bins(shape: str, rng: np.random.Generator) -> None:
    count = 100_000
    if shape == "random":
        inner = 20_000
        parents = [-1, *(rng.integers(0, node) for node in range(1, inner)), *rng.integers(0, inner, count)]
        space: ew.Space = ew.Tree(parents, bins=range(inner, inner + count))
    elif shape in ("path", "star"):
        parents = [-1, *(range(count) if shape == "path" else [0] * count)]
        space = ew.Tree(parents, bins=range(1, count + 1))
    else:
        space = ew.Chain(count) if shape == "chain" else ew.Ring(count)
    p = random_distribution(rng, 2, count)
    risk = ew.expected_distance(p, space)
    bins = torch.from_numpy(rng.integers(0, count, 4))
    reference = space.distance(bins[:, None], torch.arange(count)[None, :]).double() @ p.T
    torch.testing.assert_close(risk[:, bins].T, reference, rtol=1e-9, atol=0)


@pytest.mark.parametrize(
    ("p", "error", "message"),
    [
        ([[0.5, 0.5]], TypeError, "p: expected a tensor, got list"),
        (torch.tensor([0, 1, 0]), TypeError, r"p: expected floating point probabilities, got torch.int64; use p.float"),
        (torch.ones(4, 2) / 2, ValueError, r"p: expected a last axis of 3, the bins of Chain\(3 bins, cost 1\), got"),
        (torch.tensor(0.5), ValueError, r"p: expected a last axis of 3"),
        (
            torch.tensor([[0.2, 0.3, 0.5], [1.0, -2.0, 4.0]]),
            ValueError,
            'got -2 in bin 1 of row 1; for logits pass normalize="softmax"',
        ),
        (torch.tensor([1.0, 2.0, 4.0]), ValueError, 'got a sum of 7; for logits pass normalize="softmax"'),
        (torch.tensor([[0.1, float("nan"), 0.9]]), ValueError, "got nan in bin 1 of row 0"),
        (torch.tensor([[0.1, float("inf"), 0.9]]), ValueError, "got inf in bin 1 of row 0"),
        (torch.tensor([[[0.2, 0.2, 0.2]]]), ValueError, r"got a sum of 0.6 of row \(0, 0\)"),
    ],
)
def test_bad_probabilities(p: torch.Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ew.expected_distance(p, ew.Chain(3))


def test_bad_options() -> None:
    with pytest.raises(TypeError, match="space: expected a Chain, Ring, Tree or CostMatrix, got int"):
        ew.expected_distance(torch.ones(1), 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"normalize: expected None, .* got 'sum'"):
        ew.expected_distance(torch.ones(3) / 3, ew.Chain(3), normalize="sum")  # type: ignore[arg-type]


def test_normalize() -> None:
    logits, chain = torch.tensor([[1.0, -2.0, 4.0]]), ew.Chain(3)
    torch.testing.assert_close(
        ew.expected_distance(logits, chain, normalize="softmax"), ew.expected_distance(logits.softmax(-1), chain)
    )
    torch.testing.assert_close(
        ew.expected_distance(logits.exp(), chain, normalize="l1"), ew.expected_distance(logits.softmax(-1), chain)
    )


def test_without_kernels() -> None:
    code = (
        "import torch, earthwork as ew\n"
        "p = torch.rand(100, 1000).softmax(-1)\n"
        "chain = ew.Chain(1000)\n"
        "assert torch.allclose(ew.expected_distance(p, chain), p @ chain.distances().float(), rtol=1e-4)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "EARTHWORK_KERNELS": "off"})
