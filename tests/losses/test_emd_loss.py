"""`EMDLoss` keeps the contract of `nn.CrossEntropyLoss`."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot

import earthwork as ew
from earthwork.kernels.cpu.loading import without_kernels

TREE = ew.Tree([-1, 0, 0, 1, 1, 2, 2, 0], [0.0, 1.0, 0.5, 1.0, 2.0, 0.0, 1.0, 3.0])
SPACES = {"chain": ew.Chain(5), "ring": ew.Ring(5, [1.0, 2.0, 0.5, 1.0, 1.0]), "tree": TREE}
C = 5


@pytest.fixture(params=SPACES)
def space(request):
    return SPACES[request.param]


def rows(space, logits, labels, rho=2.0, smoothing=0.0):
    """The slow way: the distance of each softmax to its one-hot target."""
    q = one_hot(labels, C).to(logits) * (1 - smoothing) + smoothing / C
    return ew.emd(logits.softmax(-1), q, space, rho)


@pytest.mark.parametrize("rho", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_class_indices_are_one_hot_targets_bit_for_bit(space, rho, smoothing):
    """In plain PyTorch; kernels add up in another order."""
    with without_kernels():
        for dtype in (torch.float32, torch.float64):
            logits, labels = torch.randn(50, C, dtype=dtype), torch.randint(C, (50,))
            for reduction in ("none", "mean", "sum"):
                loss = ew.EMDLoss(space, rho, label_smoothing=smoothing, reduction=reduction)
                by_index = logits.clone().requires_grad_()
                by_row = logits.clone().requires_grad_()
                a, b = loss(by_index, labels), loss(by_row, one_hot(labels, C).to(dtype))
                assert torch.equal(a, b)
                a.sum().backward()
                b.sum().backward()
                torch.testing.assert_close(by_index.grad, by_row.grad)


@pytest.mark.parametrize("rho", [1.0, 1.5, 2.0])
def test_class_indices_are_one_hot_targets_by_kernels(rho):
    tree = ew.trees.cifar100()
    logits, labels = 3 * torch.randn(64, 100), torch.randint(100, (64,))
    loss = ew.EMDLoss(tree, rho, reduction="none")
    torch.testing.assert_close(loss(logits, labels), loss(logits, one_hot(labels, 100).float()), rtol=1e-6, atol=0)
    with without_kernels():
        assert torch.equal(loss(logits, labels), loss(logits, one_hot(labels, 100).float()))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("shape", [(), (7,), (2, 3), (2, 3, 4)])
def test_shapes_weights_and_ignored_entries(space, shape, reduction, weighted):
    labels = torch.randint(C, shape)
    logits = torch.randn(*shape, C, dtype=torch.float64)
    weight = torch.tensor([1.0, 0.0, 2.0, 0.5, 3.0], dtype=torch.float64) if weighted else torch.ones(C)
    if shape:
        labels.view(-1)[:2] = -1
    counted = labels != -1
    each = rows(space, logits, labels.clamp(min=0)) * weight[labels] * counted
    expected = {
        "none": each,
        "sum": each.sum(),
        "mean": each.sum() / (weight[labels] * counted).sum(),
    }[reduction]
    loss = ew.EMDLoss(space, weight=weight if weighted else None, ignore_index=-1, reduction=reduction)
    input = logits if logits.ndim == 1 else logits.movedim(-1, 1)
    torch.testing.assert_close(loss(input, labels), expected.to(torch.float64))


def test_the_mean_is_cross_entropys_own():
    """The same weights, ignored entries and reduction, put round the same row losses."""
    logits, labels = torch.randn(9, C), torch.randint(C, (9,))
    labels[3] = -100
    weight = torch.rand(C)
    ours = ew.EMDLoss(ew.Chain(C), weight=weight)
    each = rows(ew.Chain(C), logits, labels.clamp(min=0))
    # Cross entropy of log-probabilities that make its row losses ours.
    stand_in = torch.zeros(9, C).scatter(1, labels.clamp(min=0)[:, None], -each[:, None])
    expected = nn.functional.nll_loss(stand_in, labels, weight)
    torch.testing.assert_close(ours(logits, labels), expected)


@pytest.mark.parametrize("rows", [C, 100])
def test_rows_may_be_weighed(space, rows):
    logits, labels = torch.randn(rows, C, requires_grad=True), torch.arange(rows) % C
    weights = torch.arange(1.0, rows + 1)
    loss = ew.EMDLoss(space, reduction="none")
    (gradient,) = torch.autograd.grad(loss(logits, labels).sum(), logits)
    (weighed,) = torch.autograd.grad((weights * loss(logits, labels)).sum(), logits)
    torch.testing.assert_close(weighed, weights[:, None] * gradient)


@pytest.mark.parametrize("rows", [4, 100])
def test_the_way_back_is_gone_once_only(space, rows):
    loss = ew.EMDLoss(space)(torch.randn(rows, C, requires_grad=True), torch.arange(rows) % C)
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


@pytest.mark.parametrize("rows", [4, 100])
def test_a_loss_may_be_weighed(rows):
    logits, labels = torch.randn(rows, 5, requires_grad=True), torch.arange(rows) % 5
    loss = ew.EMDLoss(ew.Chain(5))
    (gradient,) = torch.autograd.grad(loss(logits, labels), logits)
    for weight in (0.0, 0.5, 1.0, 2.0, -1.0):
        (weighed,) = torch.autograd.grad(weight * loss(logits, labels), logits)
        torch.testing.assert_close(weighed, weight * gradient)


def test_mean_of_distributions_divides_by_rows():
    logits, q = torch.randn(6, C), torch.randn(6, C).softmax(-1)
    weight = torch.rand(C)
    each = ew.emd(logits.softmax(-1), q, TREE, 2) * (q * weight).sum(-1)
    torch.testing.assert_close(ew.EMDLoss(TREE, weight=weight)(logits, q), each.mean())


@pytest.mark.parametrize("normalize", ["l1", None])
def test_outputs_that_are_not_logits(space, normalize):
    output = torch.randn(8, C, dtype=torch.float64).square()
    p = output / output.sum(-1, keepdim=True)
    q = torch.randn(8, C, dtype=torch.float64).softmax(-1)
    loss = ew.EMDLoss(space, normalize=normalize)
    torch.testing.assert_close(loss(output if normalize else p, q), ew.emd(p, q, space, 2).mean())


def test_mean_of_nothing_is_nan():
    for loss in (nn.CrossEntropyLoss(), ew.EMDLoss(TREE)):
        logits = torch.randn(3, C, requires_grad=True)
        value = loss(logits, torch.full((3,), -100))
        value.backward()
        assert value.isnan()
        assert torch.equal(logits.grad, torch.zeros(3, C))
        assert loss(torch.randn(0, C), torch.zeros(0, dtype=torch.long)).isnan()
    assert ew.EMDLoss(TREE, reduction="sum")(torch.randn(0, C), torch.zeros(0, dtype=torch.long)) == 0


def test_gradients_by_finite_differences(space):
    logits = torch.randn(4, C, 2, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(C, (4, 2))
    labels[0, 0] = -100
    loss = ew.EMDLoss(space, weight=torch.rand(C), label_smoothing=0.1)
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), logits)
    assert torch.autograd.gradgradcheck(lambda x: loss(x, labels), logits)


@pytest.mark.parametrize("soft", [False, True])
def test_compiled_without_a_graph_break(space, soft):
    torch.compiler.reset()
    loss = ew.EMDLoss(space)
    logits = torch.randn(6, C, requires_grad=True)
    target = torch.randn(6, C).softmax(-1) if soft else torch.randint(C, (6,))
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(logits, target), loss(logits, target))
    (ours,) = torch.autograd.grad(compiled(logits, target), logits)
    torch.testing.assert_close(ours, torch.autograd.grad(loss(logits, target), logits)[0])


def test_functional_transforms(space):
    loss = ew.EMDLoss(space, reduction="sum")
    logits, labels = torch.randn(6, C), torch.randint(C, (6,))
    expected = torch.func.grad(loss)(logits, labels)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(logits, labels), expected)


def test_half_precision_and_autocast(space):
    logits, labels = torch.randn(6, C), torch.randint(C, (6,))
    loss = ew.EMDLoss(space)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(loss(logits, labels), ew.EMDLoss(space)(logits, labels))
    half = logits.half()
    assert loss(half, labels).dtype == torch.float16
    assert torch.equal(loss(half, labels), loss(half.float(), labels).half())


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("rows", [6, 100])
def test_autocast_gives_single_precision(space, rows, soft):
    weights, labels = torch.randn(rows, C, requires_grad=True), torch.randint(C, (rows,))
    target = torch.nn.functional.one_hot(labels, C).float() if soft else labels
    with torch.autocast("cpu", dtype=torch.float16):
        logits = weights.half()
        loss = ew.EMDLoss(space)(logits, target)
        assert loss.dtype == torch.nn.functional.cross_entropy(logits, target).dtype == torch.float32
    torch.testing.assert_close(loss, ew.EMDLoss(space)(logits.float(), target))
    torch.amp.GradScaler("cpu", init_scale=65536.0).scale(loss).backward()
    assert weights.grad.isfinite().all()


@pytest.mark.parametrize("rows", [6, 100])
def test_many_gradients_at_once(space, rows):
    logits, labels = torch.randn(rows, C, requires_grad=True), torch.randint(C, (rows,))
    loss = ew.EMDLoss(space, reduction="none")(logits, labels)
    every = torch.autograd.grad(loss, logits, torch.eye(rows), is_grads_batched=True, retain_graph=True)[0]
    each = torch.stack([torch.autograd.grad(value, logits, retain_graph=True)[0] for value in loss])
    torch.testing.assert_close(every, each)
    mean = ew.EMDLoss(space)(logits, labels)
    several = torch.autograd.grad(mean, logits, torch.tensor([1.0, 2.0]), is_grads_batched=True)[0]
    torch.testing.assert_close(several[1], 2 * several[0])
    torch.testing.assert_close(several[0], each.sum(0) / rows)


@pytest.mark.parametrize("rows", [6, 100])
def test_traced(space, rows):
    loss = ew.EMDLoss(space)
    logits, labels = torch.randn(rows, C), torch.randint(C, (rows,))
    loss(logits, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(loss, (logits, labels))
        pair = torch.jit.trace(lambda p, q: ew.emd(p, q, space, 2), (logits.softmax(-1), logits.flip(0).softmax(-1)))
    for x in (logits, torch.randn(rows, C)):
        torch.testing.assert_close(traced(x, labels), loss(x, labels))
        p, q = x.softmax(-1), x.flip(0).softmax(-1)
        torch.testing.assert_close(pair(p, q), ew.emd(p, q, space, 2))


def test_moving_a_loss_moves_its_weights():
    loss = ew.EMDLoss(ew.Tree([-1, 0, 0]), weight=torch.ones(2).double()).to(torch.float32)
    assert loss.weight.dtype == torch.float32
    assert loss.space.costs.dtype == torch.float64


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_copies(twin):
    logits, labels = torch.randn(6, C), torch.randint(C, (6,))
    loss = ew.EMDLoss(TREE, 1.5, weight=torch.rand(C))
    assert torch.equal(twin(loss)(logits, labels), loss(logits, labels))
    assert "rho=1.5" in repr(loss)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"ignore_index": None}, TypeError, r"ignore_index: expected a class index \(an integer\), got None"),
        ({"ignore_index": 1.5}, TypeError, r"ignore_index: expected a class index \(an integer\), got 1.5"),
        ({"label_smoothing": "a"}, ValueError, "label_smoothing: expected a number from 0 to 1, got 'a'"),
        (
            {"weight": torch.ones(5).long()},
            TypeError,
            r"weight: expected a floating point tensor or array, got torch\.int64",
        ),
        ({"reduction": "average"}, ValueError, 'reduction: expected "none", "mean" or "sum", got \'average\''),
        ({"normalize": "max"}, ValueError, "normalize: expected None"),
        ({"label_smoothing": 1.5}, ValueError, r"label_smoothing: expected a number from 0 to 1, got 1\.5"),
        ({"weight": torch.ones(4)}, ValueError, r"weight: expected 5 numbers, one for each class of Chain.*\(4,\)"),
        ({"weight": -torch.ones(5)}, ValueError, "weight: expected finite numbers ≥ 0, got -1 at 0"),
        ({"weight": torch.ones(5).long()}, TypeError, "weight: expected a floating point tensor"),
    ],
)
def test_bad_options(options, error, message):
    with pytest.raises(error, match=message):
        ew.EMDLoss(ew.Chain(5), **options)


def test_a_space_is_needed():
    with pytest.raises(TypeError, match="space: expected a Chain, Ring, Tree or CostMatrix, got int"):
        ew.EMDLoss(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("input", "target", "error", "message"),
    [
        (
            torch.randn(2, 4),
            torch.tensor([0, 1]),
            ValueError,
            r"input: .* C = 5, the bins of Chain.* \(2, 4\)",
        ),
        (torch.tensor(1.0), torch.tensor(0), ValueError, r"input: expected shape \(C\), .* got \(\)"),
        (torch.zeros(2, 5).long(), torch.tensor([0, 1]), TypeError, "input: expected a floating point tensor"),
        (torch.randn(2, 5), torch.tensor([0, 1, 2]), ValueError, r"target: expected class indices .* shape \(2,\), or"),
        (torch.randn(2, 5), torch.rand(2, 4), ValueError, r"distributions .* \(2, 5\), got torch.float32 .* \(2, 4\)"),
        (torch.randn(2, 5), torch.rand(2), ValueError, r"got torch.float32 of shape \(2,\)"),
        (torch.randn(2, 5), [0, 1], TypeError, "target: expected class indices, distributions or sets, got list"),
        (
            torch.randn(2, 5),
            ew.targets.any_of(torch.tensor([True, False])),
            ValueError,
            "target: .* got torch.bool of shape",
        ),
        (torch.randn(2, 5), torch.tensor([0, 5]), ValueError, r"target: .* from 0 to 4 .*, got 5 at position 1"),
        (torch.randn(2, 5, 2), torch.tensor([[0, 1], [-3, 0]]), ValueError, r"got -3 at position \(1, 0\)"),
        (torch.randn(5), torch.tensor(7), ValueError, "got 7 at position"),
        (torch.randn(2, 5), torch.full((2, 5), 0.3), ValueError, "input and target: .* got 1 in input and 1.5 in tar"),
        (torch.randn(2, 5), torch.eye(5)[:2] * -1, ValueError, "target: expected finite masses ≥ 0, got -1 in bin 0"),
    ],
)
def test_bad_calls(input, target, error, message):
    with pytest.raises(error, match=message):
        ew.EMDLoss(ew.Chain(5))(input, target)


def test_votes_in_place_of_a_distribution():
    votes = torch.tensor([[1.0, 3.0, 7.0]])
    for loss_function in (ew.EMDLoss(ew.Chain(3)), ew.SoftLabelLoss(ew.Chain(3))):
        with pytest.raises(ValueError, match="11 in target of row 0; for votes or counts divide target by its"):
            loss_function(torch.randn(1, 3), votes)
        assert loss_function(torch.randn(1, 3), votes / votes.sum(-1, keepdim=True)).isfinite()


def test_rows_without_a_target_are_left_out_by_the_mask():
    logits, target = torch.randn(2, 3), torch.tensor([[0.2, 0.3, 0.5], [0.0, 0.0, 0.0]])
    loss = ew.EMDLoss(ew.Chain(3))
    with pytest.raises(ValueError, match="0 in target of row 1; leave out rows without a target with mask"):
        loss(logits, target)
    torch.testing.assert_close(loss(logits, target, mask=torch.tensor([True, False])), loss(logits[:1], target[:1]))


def test_inputs_that_are_not_distributions():
    with pytest.raises(ValueError, match="input: expected finite masses ≥ 0"):
        ew.EMDLoss(ew.Chain(2), normalize=None)(torch.tensor([[-1.0, 2.0]]), torch.tensor([0]))
    with pytest.raises(ValueError, match="input and the target: expected rows of equal mass, got 2 in input"):
        ew.EMDLoss(ew.Chain(2), normalize=None)(torch.tensor([[1.0, 1.0]]), torch.tensor([0]))
    with pytest.raises(ValueError, match='input: expected some mass in each row to normalise by "l1"'):
        ew.EMDLoss(ew.Chain(2), normalize="l1")(torch.zeros(1, 2), torch.tensor([0]))
