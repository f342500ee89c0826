"""`from_hidden` of every loss of the catalogue: the numbers of the loss of the logits, without the logits."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from packaging.version import Version
from torch import Tensor, nn
from torch.nn.functional import linear

import earthwork as ew
from earthwork.kernels.cpu import without_kernels
from earthwork.losses import through_head
from tests.catalogue import CLASSES, LOSS_CASES, SPACES, make_loss, takes_sets, takes_weight, weights
from tests.processes import start

ROWS, FEATURES = 7, 4
RELATIVE = {torch.float64: 1e-10, torch.float32: 1e-6}


def layer(dtype: torch.dtype = torch.float64, rows: int = ROWS) -> list[Tensor]:
    """Hidden states, weight and bias."""
    generator = torch.Generator().manual_seed(0)
    shapes = (rows, FEATURES), (CLASSES, FEATURES), (CLASSES,)
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


def labels_of(kind: str, dtype: torch.dtype = torch.float64) -> Any:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(CLASSES, (ROWS,), generator=generator)
    if kind == "labels":
        return labels
    if kind == "ignored":
        return labels.index_fill(0, torch.tensor([0, 4]), -100)
    if kind == "none counts":
        return torch.full_like(labels, -100)
    scores = torch.randn(ROWS, CLASSES, generator=generator, dtype=dtype)
    if kind == "distributions":
        return scores.softmax(-1)
    return ew.targets.any_of((scores > 0) | (scores == scores.amax(-1, keepdim=True)))


def assert_same(loss: nn.Module, tensors: list[Tensor], target: Any, mask: Tensor | None = None, **call: object):
    """Value and all gradients are those of the loss of the logits, for any chunks and factor."""
    hidden, weight, bias = tensors
    # Single precision is compared with the same in double precision, so that the errors of the two do not add up.
    dtype, given = hidden.dtype, {} if mask is None else {"mask": mask}
    wide = [x.detach().double().requires_grad_() for x in tensors]
    learned = [x for x in loss.parameters() if x.requires_grad]
    soft = target.double() if isinstance(target, Tensor) and target.is_floating_point() else target
    expected = loss.double()(linear(*wide), soft, **given)
    upstream = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    slopes = torch.autograd.grad(expected, [*wide, *learned], upstream, allow_unused=True)
    if dtype != torch.float64:
        loss.to(dtype)
    for chunk_rows in (3, None):
        found = loss.from_hidden(hidden, weight, target, bias, mask=mask, chunk_rows=chunk_rows, **call)
        assert found.dtype == dtype
        assert_close(found, expected)
        for ours, theirs in zip(
            torch.autograd.grad(found, [*tensors, *learned], upstream.to(dtype), allow_unused=True), slopes, strict=True
        ):
            assert_close(torch.zeros(()) if ours is None else ours, torch.zeros(()) if theirs is None else theirs)


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    limit = RELATIVE.get(ours.dtype, 0)
    largest = theirs.nan_to_num().abs().max().item() if theirs.numel() else 0
    torch.testing.assert_close(ours.double(), theirs.double(), rtol=limit, atol=limit * largest, equal_nan=True)


def takes(case: str, kind: str) -> bool:
    if case.startswith("TokenEMDLoss"):
        return kind not in ("distributions", "sets")
    return kind != "sets" or takes_sets(case)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("kind", ["ignored", "none counts", "distributions", "sets"])
@pytest.mark.parametrize("case", LOSS_CASES)
def test_same_loss_and_gradients(case, kind, dtype):
    if "matrix" in case:
        pytest.importorskip("ot")
    if not takes(case, kind):
        pytest.skip("the loss does not take such targets")
    for reduction in ("mean", "sum", "none"):
        assert_same(make_loss(case, reduction=reduction), layer(dtype), labels_of(kind, dtype))


@pytest.mark.parametrize("kind", ["ignored", "distributions", "sets"])
@pytest.mark.parametrize("case", [case for case in LOSS_CASES if takes_weight(case)])
def test_same_with_options(case, kind):
    if "matrix" in case:
        pytest.importorskip("ot")
    if not takes(case, kind):
        pytest.skip("the loss does not take such targets")
    for options in ({"weight": weights().double()}, {"label_smoothing": 0.3}):
        assert_same(make_loss(case, **options), layer(), labels_of(kind))


@pytest.mark.parametrize("kind", ["ignored", "distributions", "sets"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_same_with_mask(kind, reduction):
    """Rows that do not count may hold anything, their labels too."""
    mask, target = torch.tensor([True, True, False, True, True, False, True]), labels_of(kind)
    if kind == "ignored":
        target[2] = 10**6
    loss = ew.EMDLoss(SPACES["tree"], reduction=reduction, weight=weights().double())
    assert_same(loss, layer(), target, mask)
    hidden, weight, bias = layer()
    hidden = hidden.detach().index_fill(0, torch.tensor([2, 5]), torch.nan).requires_grad_()
    loss.from_hidden(hidden, weight, target, bias, mask=mask).sum().backward()
    assert weight.grad.isfinite().all()
    assert not hidden.grad[~mask].any()


@pytest.mark.parametrize("term", [ew.EMDLoss(ew.Chain(200)), nn.CrossEntropyLoss()], ids=["EMD", "entropy"])
def test_labels_of_any_integer_type(term):
    """As a uint8, an ``ignore_index`` of -100 would be class 156."""
    mixed, labels = ew.MixedLoss((1.0, term), empty="zero"), torch.tensor([156, 156, 3])
    hidden, weight = torch.randn(3, 2), torch.randn(200, 2)
    for rows in (slice(None), slice(2)):
        narrow = mixed.from_hidden(hidden[rows], weight, labels[rows].to(torch.uint8))
        assert torch.equal(narrow, mixed.from_hidden(hidden[rows], weight, labels[rows]))
        torch.testing.assert_close(mixed(hidden[rows] @ weight.T, labels[rows].to(torch.uint8)), narrow)


def test_mask_of_mixture():
    """Cross entropy has no mask of its own."""
    mask, target = torch.tensor([True, True, False, True, True, False, True]), labels_of("labels")
    for loss in (ew.EMDLoss(SPACES["tree"]), ew.TokenEMDLoss([2, 0, 5], [0.0, 1.0, 2.0])):
        mixed = ew.MixedLoss((0.5, loss), (0.5, nn.CrossEntropyLoss()))
        hidden, weight, bias = layer()
        expected = mixed(linear(hidden[mask], weight, bias), target[mask])
        torch.testing.assert_close(mixed.from_hidden(hidden, weight, target, bias, mask=mask), expected)


def test_parts_of_mixture():
    for reduction in ("mean", "none"):
        terms = ew.EMDLoss(SPACES["tree"], reduction=reduction), nn.CrossEntropyLoss(reduction=reduction)
        mixed, (hidden, weight, bias) = ew.MixedLoss((0.2, terms[0]), (0.0, terms[1])), layer()
        mixed(linear(hidden, weight, bias), labels_of("ignored"))
        expected = mixed.parts
        mixed.from_hidden(hidden, weight, labels_of("ignored"), bias, chunk_rows=2)
        assert list(mixed.parts) == list(expected)
        for name, part in mixed.parts.items():
            torch.testing.assert_close(part, expected[name])
            assert not part.requires_grad


def test_tokens_in_mixture():
    tokens = ew.TokenEMDLoss([2, 0, 5], [0.0, 1.0, 2.0], outside=2.0)
    for options in ({}, {"empty": "zero"}):
        mixed = ew.MixedLoss((0.3, tokens), (0.7, nn.CrossEntropyLoss()), **options)
        for kind in ("ignored", "none counts"):
            assert_same(mixed, layer(), labels_of(kind))


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 2, 3), (0,), (2, 0)])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_shapes(shape, reduction):
    """The classes are last, whatever ``class_dim`` says."""
    _, weight, bias = layer()
    hidden = torch.randn(*shape, FEATURES, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(CLASSES, shape)
    loss = ew.EMDLoss(SPACES["chain"], reduction=reduction, class_dim=-1, empty="zero")
    logits = linear(hidden, weight, bias)
    for target in (labels, logits.detach().flip(-1).softmax(-1)):
        found = ew.EMDLoss(SPACES["chain"], reduction=reduction, empty="zero").from_hidden(hidden, weight, target, bias)
        torch.testing.assert_close(found, loss(logits, target))
        found.sum().backward()


def test_by_kernels_and_without():
    """Chunks above and below the size from which on kernels serve."""
    hidden, weight, bias = layer(rows=200)
    labels = torch.arange(200) % CLASSES
    loss = ew.EMDLoss(SPACES["tree"], 1.5)
    with without_kernels():
        expected = torch.autograd.grad(loss(linear(hidden, weight, bias), labels), (hidden, weight, bias))
    for chunk_rows in (7, 60, 200):
        found = loss.from_hidden(hidden, weight, labels, bias, chunk_rows=chunk_rows)
        for ours, theirs in zip(torch.autograd.grad(found, (hidden, weight, bias)), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_chunks_keep_memory_bounded(monkeypatch):
    """No chunk has more logits than the budget, or a quarter of the features in rows."""
    sizes = []
    losses = through_head._Chunks.losses
    monkeypatch.setattr(
        through_head._Chunks, "losses", lambda self, x, target: sizes.append(x.shape) or losses(self, x, target)
    )
    hidden, weight, bias = layer(rows=200)
    labels, loss = torch.arange(200) % CLASSES, ew.EMDLoss(SPACES["tree"])
    for budget, expected in ((2**26, 200), (4 * CLASSES * 30, 30), (1, 1)):
        monkeypatch.setattr(through_head, "CHUNK_BYTES", budget)
        sizes.clear()
        loss.from_hidden(hidden, weight, labels, bias)
        assert max(rows for rows, _ in sizes) == expected
        assert sum(rows for rows, _ in sizes) == 200
    sizes.clear()
    loss.from_hidden(torch.ones(9, 16), torch.ones(CLASSES, 16), labels[:9])
    assert [rows for rows, _ in sizes] == [4, 4, 1]


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_frozen_tensors(reduction, frozen):
    tensors, labels = layer(), labels_of("labels")
    loss = ew.EMDLoss(SPACES["chain"], reduction=reduction)
    expected = torch.autograd.grad(loss(linear(*tensors), labels).sum(), tensors)
    tensors[frozen].requires_grad_(False)
    hidden, weight, bias = tensors
    loss.from_hidden(hidden, weight, labels, bias, chunk_rows=2).sum().backward()
    for place, (tensor, slope) in enumerate(zip(tensors, expected, strict=True)):
        if place == frozen:
            assert tensor.grad is None
        else:
            torch.testing.assert_close(tensor.grad, slope)


def test_only_costs_are_learned():
    tensors, labels = [x.detach() for x in layer()], labels_of("labels")
    for reduction in ("mean", "none"):
        loss = make_loss("EMDLoss learned, tree", reduction=reduction)
        loss.costs.unused = nn.Parameter(torch.ones(2))
        (expected,) = torch.autograd.grad(loss(linear(*tensors), labels).sum(), loss.costs.log_costs)
        hidden, weight, bias = tensors
        loss.from_hidden(hidden, weight, labels, bias, chunk_rows=2).sum().backward()
        torch.testing.assert_close(loss.costs.log_costs.grad, expected)


def test_learned_targets_and_class_weights():
    """Whatever the loss of the logits can be differentiated by."""
    for reduction in ("mean", "sum", "none"):
        for target in (labels_of("ignored"), labels_of("distributions").requires_grad_()):
            loss = ew.SoftLabelLoss(SPACES["tree"], weight=weights().double(), reduction=reduction)
            loss.weight.requires_grad_()
            inputs = [*layer(), loss.weight] + [target] * target.requires_grad
            (hidden, weight, bias), value = inputs[:3], loss(linear(*inputs[:3]), target).sum()
            expected = torch.autograd.grad(value, inputs)
            found = loss.from_hidden(hidden, weight, target, bias, chunk_rows=2).sum()
            torch.testing.assert_close(found, value)
            for ours, theirs in zip(torch.autograd.grad(found, inputs), expected, strict=True):
                torch.testing.assert_close(ours, theirs)


def test_no_gradients_without_need(monkeypatch):
    """Nothing is allocated for gradients, and no loss is differentiated."""
    hidden, weight, bias = layer()
    loss, labels = ew.EMDLoss(SPACES["chain"]), labels_of("labels")
    expected = loss(linear(hidden, weight, bias), labels)

    def fail(*arguments, **options):
        raise AssertionError("differentiated")

    monkeypatch.setattr(torch.autograd, "grad", fail)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(loss.from_hidden(hidden, weight, labels, bias), expected.detach())


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_second_derivatives_are_an_error(reduction):
    hidden, weight, bias = layer()
    loss = ew.EMDLoss(SPACES["chain"], reduction=reduction)
    value = loss.from_hidden(hidden, weight, labels_of("labels"), bias).sum()
    slopes = torch.autograd.grad(value, (hidden, weight), create_graph=True)
    for slope in slopes:
        with pytest.raises(RuntimeError, match="from_hidden: expected first derivatives only, got a second one"):
            torch.autograd.grad(slope.square().sum(), hidden, retain_graph=True)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_backward_twice(reduction):
    """A graph that is kept gives the same gradients again; one that is not is an error."""
    hidden, weight, bias = layer()
    loss = ew.EMDLoss(SPACES["chain"], reduction=reduction)
    value = 3 * loss.from_hidden(hidden, weight, labels_of("labels"), bias).sum()
    first = torch.autograd.grad(value, weight, retain_graph=True)[0].clone()
    torch.testing.assert_close(torch.autograd.grad(value, weight)[0], first)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(value, weight)


def test_gradients_are_added_to_existing_ones():
    """The gradients are tensors of their own, not buffers that are written again."""
    hidden, weight, bias = layer()
    loss = ew.EMDLoss(SPACES["chain"])
    loss.from_hidden(hidden, weight, labels_of("labels"), bias).backward()
    once = weight.grad.clone()
    loss.from_hidden(hidden, weight, labels_of("labels"), bias).backward()
    torch.testing.assert_close(weight.grad, 2 * once)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", ["EMDLoss, tree", "MixedLoss, chain"])
def test_autocast(case, dtype):
    """The logits are in half precision, the loss and the gradients of the parameters in single precision."""
    hidden, weight, bias = layer(torch.float32)
    loss, labels = make_loss(case), labels_of("ignored")
    half = [x.detach().to(dtype).double().requires_grad_() for x in (hidden, weight, bias)]
    expected = loss(linear(*half).to(dtype).double(), labels)
    slopes = torch.autograd.grad(expected, half)
    with torch.autocast("cpu", dtype):
        found = loss.from_hidden(hidden, weight, labels, bias, chunk_rows=3)
    # As a gradient scaler does.
    (found * 2**16).backward()
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-2, atol=1e-3)
    limit = 2e-2 if dtype == torch.bfloat16 else 3e-3
    for tensor, slope in zip((hidden, weight, bias), slopes, strict=True):
        assert tensor.grad.dtype == torch.float32
        largest = slope.abs().max().item()
        torch.testing.assert_close(tensor.grad.double() / 2**16, slope, rtol=0, atol=limit * largest)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e9])
def test_half_precision_neither_overflows_nor_vanishes(scale):
    """The slopes of 4096 rows, or of huge costs, are outside the range of float16."""
    chain = ew.Chain(CLASSES, costs=scale)
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, FEATURES, generator=generator) for n in (4096, CLASSES))
    labels = torch.randint(CLASSES, (4096,), generator=generator)
    wide = [x.half().float().requires_grad_() for x in (hidden, weight)]
    expected = torch.autograd.grad(ew.EMDLoss(chain)(linear(*wide), labels), wide)
    half = [x.half().float().requires_grad_() for x in (hidden, weight)]
    with torch.autocast("cpu", torch.float16):
        found = ew.EMDLoss(chain).from_hidden(half[0], half[1], labels, chunk_rows=512)
    for ours, theirs in zip(torch.autograd.grad(found, half), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=5e-3 * theirs.abs().max().item())


def test_weights_in_half_precision_are_summed_in_single():
    """Thousands of small gradients are added, which in bfloat16 would stop at 256 times the last one."""
    hidden = torch.ones(4096, 1, dtype=torch.bfloat16)
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    loss = ew.EMDLoss(ew.Chain(2), reduction="sum")
    loss.from_hidden(hidden, weight, torch.zeros(4096, dtype=torch.int64), chunk_rows=2).backward()
    assert weight.grad.dtype == torch.bfloat16
    # Each row: 2 · 1/2 · 1/4 for the second class.
    assert weight.grad.flatten().tolist() == [-1024, 1024]


def test_transforms_see_the_definition():
    hidden, weight, bias = (x.detach() for x in layer())
    loss, labels = ew.EMDLoss(SPACES["tree"]), labels_of("labels")
    found = torch.func.grad(lambda w: loss.from_hidden(hidden, w, labels, bias))(weight)
    expected = torch.func.grad(lambda w: loss(linear(hidden, w, bias), labels))(weight)
    torch.testing.assert_close(found, expected)


# The compiler looks at the attribute of every tensor, and hides the warning unless it is an error.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_compiled_with_graph_break():
    hidden, weight, bias = layer(torch.float32)
    loss, labels = ew.EMDLoss(SPACES["tree"]), labels_of("labels")

    def step(hidden: Tensor) -> Tensor:
        return 2 * loss.from_hidden(hidden.tanh(), weight, labels, bias)

    expected = torch.autograd.grad(step(hidden), (hidden, weight))
    torch.compiler.reset()
    found = torch.autograd.grad(torch.compile(step, backend="eager")(hidden), (hidden, weight))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda f, h, w, y, b: f(h, w[:5], y), ValueError,
         r"weight: expected shape \(6, 4\), the classes and the features of hidden, got \(5, 4\)"),
        (lambda f, h, w, y, b: f(h, w.T, y), ValueError, r"weight: expected shape \(classes, 4\), .*got \(4, 6\)"),
        (lambda f, h, w, y, b: f(h, w, y, b[:2]), ValueError, r"bias: expected shape \(6,\), as weight, got \(2,\)"),
        (lambda f, h, w, y, b: f(h, w.float(), y, b), TypeError, r"weight: expected torch.float64, the type of hidden"),
        (lambda f, h, w, y, b: f(h.long(), w, y, b), TypeError, "hidden: expected a floating point tensor"),
        (lambda f, h, w, y, b: f(h, None, y, b), TypeError, "weight: expected a floating point tensor, got NoneType"),
        (lambda f, h, w, y, b: f(h, w, y[:3], b), ValueError, r"target: expected class indices .* of shape \(7,\)"),
        (lambda f, h, w, y, b: f(h, w, y, b, mask=y), TypeError, "mask: expected a boolean tensor, got torch.int64"),
        (lambda f, h, w, y, b: f(h, w, y, b, mask=y[:3] > 0), ValueError, r"mask: expected shape \(7,\)"),
        (lambda f, h, w, y, b: f(h, w, y, b, chunk_rows=0), ValueError, "chunk_rows: expected None or an integer ≥ 1"),
        (lambda f, h, w, y, b: f(h, w, y.index_fill(0, torch.tensor(5), 9), b, chunk_rows=2), ValueError,
         "got 9 at position 5"),
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    hidden, weight, bias = layer()
    with pytest.raises(error, match=match):
        call(ew.EMDLoss(SPACES["chain"]).from_hidden, hidden, weight, labels_of("labels"), bias)


def test_row_of_bad_mass_is_told():
    hidden, weight, bias = layer()
    target = labels_of("distributions")
    target[5] *= 3
    with pytest.raises(ValueError, match="and 3 in target of row 1") as caught:
        ew.EMDLoss(SPACES["chain"]).from_hidden(hidden, weight, target, bias, chunk_rows=2)
    assert caught.value.__notes__ == ["from_hidden: row 0 of this message is row 4 of all rows"]


def test_mixtures_that_have_no_rows():
    hidden, weight, bias = layer()
    emd = ew.EMDLoss(SPACES["chain"])
    for terms, error, match in (
        ([emd, nn.NLLLoss()], TypeError, "terms: expected losses of this library .* got NLLLoss"),
        ([emd, ew.MixedLoss((1.0, emd))], TypeError, "other than MixedLoss"),
        ([emd, nn.CrossEntropyLoss(reduction="none")], ValueError, '^terms: .* reduction="none" .* got some$'),
        ([emd, ew.TokenEMDLoss([0], [1.0], shift=True)], ValueError, "shift: expected False"),
    ):
        with pytest.raises(error, match=match):
            ew.MixedLoss(*((1.0, loss) for loss in terms)).from_hidden(hidden, weight, labels_of("labels"), bias)
    with pytest.raises(TypeError, match="got sets"):
        ew.MixedLoss((1.0, nn.CrossEntropyLoss())).from_hidden(hidden, weight, labels_of("sets"), bias)


def test_head():
    tree, labels = SPACES["tree"], labels_of("labels")
    head = ew.Head(FEATURES, tree, dtype=torch.float64)
    hidden = layer()[0]
    logits = head.eval()(hidden)
    torch.testing.assert_close(logits, linear(hidden, head.weight, head.bias))
    mixed = ew.MixedLoss((0.5, ew.EMDLoss(tree)), (0.5, nn.CrossEntropyLoss()))
    expected = torch.autograd.grad(mixed(logits, labels), (hidden, *head.parameters()))
    found = torch.autograd.grad(head.train()(hidden, labels), (hidden, *head.parameters()))
    torch.testing.assert_close(found, expected)
    assert list(head.state_dict()) == ["weight", "bias"]
    mask = labels > 2
    soft = ew.Head(FEATURES, tree, ew.SoftLabelLoss(tree), bias=False, dtype=torch.float64)
    torch.testing.assert_close(soft(hidden, labels, mask), soft.loss(soft(hidden)[mask], labels[mask]))
    assert "tree" in repr(soft).lower()
    with pytest.raises(TypeError, match=r"loss: expected a loss of this library, got CrossEntropyLoss; MixedLoss\("):
        ew.Head(FEATURES, tree, nn.CrossEntropyLoss())
    with pytest.raises(TypeError, match="space: expected"):
        ew.Head(FEATURES, 5)


class WithHead(nn.Module):
    def __init__(self, space: ew.Space) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, FEATURES), ew.Head(FEATURES, space)

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        return self.head(self.body(features).tanh(), labels)


def compare_parallel(rank: int, ranks: int, group: str) -> None:
    """Gradients of half the rows in each of two processes, averaged; run by each process."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{group}", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    network, features, labels = WithHead(SPACES["tree"]), torch.randn(6, 8), torch.arange(6) % CLASSES
    replicated, sharded = copy.deepcopy(network), copy.deepcopy(network)
    network(features, labels).backward()
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (ranks,))
    networks = [DistributedDataParallel(replicated)]
    if Version(torch.__version__) >= Version("2.10"):  # before, `fully_shard` is wrong on CPUs
        for module in (sharded.head, sharded):
            fully_shard(module, mesh=mesh)
        networks.append(sharded)
    for parallel in networks:
        parallel(features[rank::ranks], labels[rank::ranks]).backward()
        for ours, theirs in zip(parallel.parameters(), network.parameters(), strict=True):
            gradient = ours.grad.full_tensor() if hasattr(ours.grad, "full_tensor") else ours.grad
            torch.testing.assert_close(gradient, theirs.grad)
    torch.distributed.destroy_process_group()


def test_head_in_parallel_networks(tmp_path):
    """A head below DDP or FSDP, which must see its parameters in the forward pass."""
    start(compare_parallel, 2, 2, str(tmp_path / "group"))


def test_meta_tensors():
    hidden, weight, bias = (x.to("meta") for x in layer())
    for reduction, shape in (("mean", ()), ("none", (ROWS,))):
        loss = ew.EMDLoss(SPACES["tree"], reduction=reduction)
        found = loss.from_hidden(hidden, weight, torch.empty(ROWS, dtype=torch.int64, device="meta"), bias)
        assert found.is_meta
        assert found.shape == shape
