"""`SinkhornLoss`, and `EMDLoss` on a metric, keep the contract of `nn.CrossEntropyLoss`."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch.nn.functional import one_hot

import earthwork as ew

C = 5
TREE = ew.Tree([-1, 0, 0, 1, 1, 2, 2, 0], [0.0, 1.0, 0.5, 1.0, 2.0, 0.1, 1.0, 3.0])
SPACES = {
    "chain": ew.Chain(C),
    "ring": ew.Ring(C, [1.0, 2.0, 0.5, 1.0, 1.0]),
    "tree": TREE,
    "metric": ew.CostMatrix(TREE.distances()),
}


@pytest.fixture(params=SPACES)
def space(request):
    return SPACES[request.param]


def slow(kind, logits, labels, space, smoothing=0.0):
    q = one_hot(labels, C).to(logits) * (1 - smoothing) + smoothing / C
    p = logits.softmax(-1)
    return ew.sinkhorn(p, q, space).value if kind == "sinkhorn" else ew.emd(p, q, space)


def make(kind, space, **options):
    return ew.SinkhornLoss(space, **options) if kind == "sinkhorn" else ew.EMDLoss(space, rho=1, **options)


@pytest.mark.parametrize("kind", ["sinkhorn", "emd"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_class_indices_are_one_hot_targets(space, kind, smoothing):
    labels = torch.randint(C, (20,))
    loss = make(kind, space, label_smoothing=smoothing, reduction="none")
    logits = [torch.randn(20, C, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) for _ in range(3)]
    by_index, by_row, by_hand = (x.requires_grad_() for x in logits)
    values = [
        loss(by_index, labels),
        loss(by_row, one_hot(labels, C).double()),
        slow(kind, by_hand, labels, space, smoothing),
    ]
    for value in values:
        value.sum().backward()
    for value, x in zip(values[1:], (by_row, by_hand), strict=True):
        torch.testing.assert_close(value, values[0])
        torch.testing.assert_close(x.grad, by_index.grad)


@pytest.mark.parametrize("kind", ["sinkhorn", "emd"])
def test_feature_maps_weights_ignored_entries(kind):
    space, weight = SPACES["metric"], torch.tensor([1.0, 0.0, 2.0, 0.5, 3.0])
    logits, labels = torch.randn(2, C, 3, 4), torch.randint(C, (2, 3, 4))
    labels[0, 0] = -100
    weights = weight[labels.clamp(min=0)] * (labels >= 0)
    each = slow(kind, logits.movedim(1, -1), labels.clamp(min=0), space) * weights
    torch.testing.assert_close(make(kind, space, weight=weight)(logits, labels), each.sum() / weights.sum())
    torch.testing.assert_close(make(kind, space, weight=weight, reduction="none")(logits, labels), each)


@pytest.mark.parametrize("kind", ["sinkhorn", "emd"])
def test_half_precision_and_autocast(kind):
    loss, logits, labels = make(kind, SPACES["metric"]), torch.randn(6, C), torch.randint(C, (6,))
    soft = torch.rand(6, C).softmax(-1)
    assert loss(logits.bfloat16(), labels).dtype == torch.bfloat16
    for target in (labels, soft):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = loss(logits, target)
        torch.testing.assert_close(inside, loss(logits, target))


def test_confident_logits_have_finite_gradient(space):
    logits = (torch.eye(C) * 500).requires_grad_()
    ew.SinkhornLoss(space, lam=1000.0)(logits, torch.arange(C).flip(0)).backward()
    assert torch.isfinite(logits.grad).all()


def test_class_indices_need_no_matrix(monkeypatch):
    def never(space):
        raise AssertionError("the matrix was made")

    monkeypatch.setattr(ew.Space, "distances", never)
    loss = ew.SinkhornLoss(ew.Tree([-1] + [0] * 100_000))
    logits = torch.zeros(2, 100_000, requires_grad=True)
    loss(logits, torch.tensor([0, 99_999])).backward()
    assert torch.isfinite(logits.grad).all()


def test_papers_algorithm_compiles():
    loss = ew.SinkhornLoss(ew.Chain(C), method="paper")
    logits, labels = torch.randn(4, C, requires_grad=True), torch.randint(C, (4,))
    compiled = torch.compile(loss, backend="eager", fullgraph=True)(logits, labels)
    torch.testing.assert_close(compiled, loss(logits, labels))
    slopes = [torch.autograd.grad(value, logits)[0] for value in (compiled, loss(logits, labels))]
    torch.testing.assert_close(*slopes)


def test_compiles_and_maps(space):
    loss = ew.SinkhornLoss(space, reduction="none")
    logits, labels = torch.randn(4, C, requires_grad=True), torch.randint(C, (4,))
    value = torch.compile(loss, backend="eager", fullgraph=True)(logits, labels)
    torch.testing.assert_close(value, loss(logits, labels))
    torch.testing.assert_close(torch.func.vmap(loss)(logits.detach(), labels), value)
    slope = torch.func.grad(lambda x, y: loss(x, y))
    (expected,) = torch.autograd.grad(value.sum(), logits)
    torch.testing.assert_close(torch.func.vmap(slope)(logits.detach(), labels), expected)


def test_papers_algorithm_and_tolerance():
    chain, logits, labels = ew.Chain(C), torch.randn(4, C), torch.randint(C, (4,))
    paper = ew.SinkhornLoss(chain, method="paper", max_iter=1)
    torch.testing.assert_close(paper(logits, labels), ew.SinkhornLoss(chain)(logits, labels))
    with pytest.warns(ew.ConvergenceWarning):
        ew.SinkhornLoss(chain, max_iter=1, tol=1e-12)(logits, torch.rand(4, C).softmax(-1))


def test_copies_pickles_and_says_its_options():
    loss = ew.SinkhornLoss(ew.CostMatrix(TREE.distances()), lam=2.5, max_iter=30)
    logits, labels = torch.randn(4, C), torch.randint(C, (4,))
    for twin in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert torch.equal(twin(logits, labels), loss(logits, labels))
    assert "lam=2.5, max_iter=30, tol=None" in repr(loss)


def test_relaxed_distance_on_metric_is_error():
    with pytest.raises(ValueError, match=r"rho: expected 1 on CostMatrix\(5 bins.*\), which has no edges.*, got 2"):
        ew.EMDLoss(SPACES["metric"], rho=2.0)


def regularized(space, lam=2.0, max_iter=2000, tol=1e-13, **options):
    return ew.SinkhornLoss(space, lam, max_iter, tol=tol, value="regularized", **options)


def test_regularized_value_that_of_pots_plan(space):
    ot = pytest.importorskip("ot")
    p, q = torch.randn(2, 4, C, dtype=torch.float64).softmax(-1)
    matrix = space.distances().double()
    found = regularized(space, normalize=None, reduction="none")(p, q)
    for value, a, b in zip(found, p, q, strict=True):
        plan = torch.from_numpy(
            ot.bregman.sinkhorn_log(a.numpy(), b.numpy(), matrix.numpy(), 0.5, numItermax=10000, stopThr=1e-14)
        )
        torch.testing.assert_close(value, (plan * matrix).sum() + 0.5 * torch.xlogy(plan, plan).sum())


@pytest.mark.parametrize(
    "options", [{}, {"label_smoothing": 0.2}, {"method": "paper", "max_iter": 500, "tol": None}], ids=str
)
def test_regularized_value_gradient_of_loss(space, options):
    loss = regularized(space, **options)
    logits = torch.randn(3, C, dtype=torch.float64, requires_grad=True)
    q = torch.randn(3, C, dtype=torch.float64).softmax(-1)
    assert torch.autograd.gradcheck(lambda x: loss(x, q), logits)
    if options.get("method") != "paper":
        assert torch.autograd.gradcheck(lambda x: loss(x, torch.tensor([0, 2, 4])), logits)
    cost = regularized(space, **options)
    cost.value = "cost"
    (ours,), (theirs,) = (torch.autograd.grad(f(logits, q), logits) for f in (loss, cost))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert loss(logits, q) < cost(logits, q)


def test_against_class_regularized_value_reverse(space):
    logits, labels, lam = torch.randn(6, C, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 4, 0]), 1.5
    scores = -lam * space.distances().double()[:, labels].T
    divergence = torch.nn.functional.kl_div(scores.log_softmax(-1), logits.softmax(-1), reduction="none").sum(-1)
    expected = (divergence - scores.logsumexp(-1)) / lam
    loss = regularized(space, lam, reduction="none")
    torch.testing.assert_close(loss(logits, labels), expected)
    torch.testing.assert_close(loss(logits, one_hot(labels, C).double()), expected)


def test_regularized_value_compiles(space):
    logits, labels = torch.randn(6, C, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 4, 0])
    loss = regularized(space, 1.5, reduction="none")
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(logits, labels), loss(logits, labels))


def test_empty_bins_have_regularized_value():
    p = torch.tensor([[0.5, 0.5, 0.0]])
    loss = regularized(ew.Chain(3), normalize=None, tol=None, max_iter=50)
    assert loss(p, torch.tensor([0])).item() == pytest.approx(0.5 - 0.5 * 0.6931472, rel=1e-6)
    assert loss(p, torch.tensor([[0.5, 0.0, 0.5]])).isfinite()


def test_value_is_one_of_two():
    with pytest.raises(ValueError, match='value: expected "cost" or "regularized", got \'dual\''):
        ew.SinkhornLoss(ew.Chain(3), value="dual")
    assert "value='regularized'" in repr(ew.SinkhornLoss(ew.Chain(3), value="regularized"))
    assert "value=" not in repr(ew.SinkhornLoss(ew.Chain(3)))
