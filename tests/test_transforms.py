"""Losses where tensors are not plain: copies in inference mode, fake and sharded tensors, traces and exports."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.distributed
from packaging.version import Version
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import earthwork as ew
from tests.catalogue import CLASSES as N
from tests.catalogue import LOSS_CASES, SPACES, make_loss, weights

ALL_LOSSES = {case: make_loss(case) for case in LOSS_CASES} | {
    "EMDLoss weights, tree": make_loss("EMDLoss, tree", weight=weights()),
    "EMDLoss l1, tree": make_loss("EMDLoss, tree", normalize="l1"),
}
# The shapes of token losses depend on the values of the labels, which a trace does not have.
LOSSES = {name: loss for name, loss in ALL_LOSSES.items() if not isinstance(loss, ew.TokenEMDLoss)}
# Below and above the number of entries from which kernels are called.
ROWS = (2, 60)


@pytest.fixture(params=LOSSES)
def loss(request):
    return LOSSES[request.param]


def batch(loss, rows, soft=False):
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, N, generator=generator)
    x = x.softmax(-1) if getattr(loss, "normalize", "softmax") != "softmax" else x
    return x, torch.rand(rows, N, generator=generator).softmax(-1) if soft else torch.arange(rows) % N


def gradient(loss, x, target):
    x = x.clone().requires_grad_()
    loss(x, target).backward()
    return x.grad


def unpickled(loss):
    return pickle.loads(pickle.dumps(loss))


@pytest.mark.parametrize("copied", [copy.deepcopy, unpickled])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", ALL_LOSSES)
def test_copy_made_in_inference_mode_can_trained(name, rows, copied):
    loss = ALL_LOSSES[name]
    x, labels = batch(loss, rows)
    with torch.inference_mode():
        twin = copied(loss)
        assert torch.equal(twin(x, labels), loss(x, labels))
    twin.weight = getattr(loss, "weight", None)
    assert torch.equal(gradient(twin, x, labels), gradient(loss, x, labels))


def test_deep_copy_keeps_what_is_shared():
    loss = ew.EMDLoss(SPACES["tree"])
    pair = copy.deepcopy(nn.ModuleList([loss, loss]))
    assert pair[0] is pair[1]
    assert pair[0] is not loss
    assert pair[0].space is loss.space


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("rows", ROWS)
def test_fake_tensors(loss, rows, soft):
    x, target = batch(loss, rows, soft)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(x).requires_grad_()
        value = loss(fake, mode.from_tensor(target))
        value.backward()
        assert value.shape == ()
        assert fake.grad.shape == x.shape


def test_spaces_of_fake_tensors():
    """Spaces are made of arrays, so that they can be made and used anywhere."""
    with FakeTensorMode():
        for space in (ew.Chain(3), ew.Ring(3), ew.Tree([-1, 0, 0, 1, 1])):
            fake = torch.randn(4, 3, requires_grad=True)
            ew.EMDLoss(space)(fake, torch.zeros(4, dtype=torch.long)).backward()
            assert fake.grad.shape == (4, 3)
            assert space.flow(torch.empty(4, 3, device="meta")).shape == (4, space.num_edges)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rows", ROWS)
def test_traces(loss, rows):
    x, labels = batch(loss, rows)
    traced = torch.jit.trace(loss, (x, labels), check_trace=False)
    other, flipped = x.roll(1, 0), labels.flip(0)
    torch.testing.assert_close(traced(other, flipped), loss(other, flipped))
    torch.testing.assert_close(gradient(traced, other, flipped), gradient(loss, other, flipped))


@pytest.mark.filterwarnings("ignore")
def test_trace_keeps_no_branch_of_its_example(loss):
    traced = torch.jit.trace(loss, batch(loss, 8), check_trace=False)
    x, labels = batch(loss, 60)
    labels[::3] = -100
    # Cross entropy has NaN gradients in ignored rows, and an error for other labels.
    ours = not isinstance(loss, ew.MixedLoss)
    if ours:
        x[::3] = torch.nan
    torch.testing.assert_close(traced(x, labels), loss(x, labels))
    torch.testing.assert_close(gradient(traced, x, labels), gradient(loss, x, labels))
    if ours:
        labels[1] = 1000
        assert traced(x, labels).isnan()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("rows", ROWS)
def test_activation_checkpointing(loss, rows, reentrant):
    x, labels = batch(loss, rows)
    recomputed = gradient(lambda x, y: checkpoint(loss, x, y, use_reentrant=reentrant), x, labels)
    assert torch.equal(recomputed, gradient(loss, x, labels))


# The constant of a ring at other exponents is found by an operator of the library, which iterates.
ITERATED = ("EMDLoss rho=1.5, ring", "EMDLoss high root, ring")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in LOSSES if "inner tree" not in name and name not in ITERATED])
def test_exported_losses(name, tmp_path):
    """They consist of operators of torch, and ONNX Runtime computes the same loss of other inputs."""
    loss = LOSSES[name]
    x, labels = batch(loss, 60)
    program = torch.export.export(loss, (x, labels), strict=False)  # the default since torch 2.9
    calls = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert not [name for name in calls if "earthwork" in name]
    other = x.roll(1, 0), labels.flip(0).clone()
    torch.testing.assert_close(program.module()(*other), loss(*other))
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    torch.onnx.export(program, (x, labels), tmp_path / "loss.onnx", dynamo=True, verbose=False)
    session = runtime.InferenceSession(tmp_path / "loss.onnx", providers=["CPUExecutionProvider"])
    given = {slot.name: tensor.numpy() for slot, tensor in zip(session.get_inputs(), other, strict=True)}
    torch.testing.assert_close(torch.from_numpy(session.run(None, given)[0]), loss(*other), rtol=1e-4, atol=1e-5)


@pytest.fixture
def mesh(tmp_path):
    from torch.distributed.device_mesh import init_device_mesh

    torch.distributed.init_process_group("gloo", f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def can_be_sharded(loss):
    simple = loss.normalize == "softmax" and not loss.label_smoothing and isinstance(loss.space, ew.Chain | ew.Tree)
    return simple and not getattr(loss, "costs", None) and not (getattr(loss, "root", False) and loss.rho > 2)


@pytest.mark.filterwarnings("ignore")
def test_sharded_tensors_error_says_what_to(mesh):
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    x, labels = batch(None, 60)
    sharded, spread = distribute_tensor(x, mesh, [Shard(0)]), distribute_tensor(labels, mesh, [Shard(0)])
    for name, loss in LOSSES.items():
        if isinstance(loss, ew.EMDLoss | ew.EdgeCrossEntropyLoss) and can_be_sharded(loss):
            torch.testing.assert_close(loss(sharded, spread).full_tensor(), loss(x, labels), msg=name)
        else:
            said = r"input: expected a plain tensor.*, got a DTensor; pass x\.full|for a DTensor, got|are sharded, got"
            with pytest.raises(TypeError, match=said):
                loss(sharded, spread)
        with pytest.raises(TypeError, match=r"target: expected a plain tensor, got a DTensor"):
            loss(x, spread)
    if Version(torch.__version__) >= Version("2.7"):  # before, Gloo has no mean for torch's own cross entropy
        mixed = ew.MixedLoss((0.5, LOSSES["EMDLoss, chain"]), (0.5, nn.CrossEntropyLoss()))
        torch.testing.assert_close(mixed(sharded, spread).full_tensor(), mixed(x, labels))
    with pytest.raises(TypeError, match="p: expected a plain tensor, got a DTensor"):
        ew.emd(sharded, sharded, SPACES["chain"])
    with pytest.raises(TypeError, match="labels: expected a plain tensor, got a DTensor"):
        ALL_LOSSES["TokenEMDLoss, chain"](x, spread)
    with pytest.raises(TypeError, match="labels: expected a plain tensor, got a DTensor"):
        ew.MixedLoss((1.0, nn.CrossEntropyLoss())).from_hidden(x, torch.randn(N, N), spread)
    for loss in LOSSES.values():
        if getattr(loss, "normalize", "softmax") == "softmax":
            assert torch.equal(loss(sharded.to_local(), spread.to_local()), loss(x, labels))
    loss = ew.EMDLoss(ew.Chain(N))
    whole, partial = (DTensor.from_local(x, mesh, [how], run_check=False) for how in (Shard(1), Partial()))
    with pytest.raises(TypeError, match=r"target: expected a DTensor of placements \(Shard\(dim=0\).*got a plain"):
        loss(sharded, labels)
    with pytest.raises(TypeError, match="target: expected class indices for a DTensor, got distributions; pass"):
        loss(whole, distribute_tensor(x.softmax(-1), mesh, [Shard(1)]))
    with pytest.raises(ValueError, match="input: expected placements Shard or Replicate, and the classes sharded"):
        loss(partial, labels)
    with pytest.raises(ValueError, match="target: expected no partial sums, got placements"):
        loss(whole, DTensor.from_local(labels, mesh, [Partial()], run_check=False))
    with pytest.raises(ValueError, match=f"target: expected class indices from 0 to {N - 1}"):
        loss(whole, DTensor.from_local(labels + N, mesh, [Replicate()], run_check=False))
    with pytest.raises(TypeError, match="costs: expected those of the space for a DTensor, got costs that are learned"):
        LOSSES["EMDLoss learned, chain"](whole, labels)
    with pytest.raises(TypeError, match="root: expected rho ≤ 2 for a DTensor, got 3; pass"):
        LOSSES["EMDLoss high root, chain"](whole, labels)


def change(x: Tensor) -> None:
    """In place, so that every sum and every order changes."""
    with torch.no_grad():
        x.copy_((x + 1) % N if not x.is_floating_point() else x.roll(1, -1) * torch.arange(1.0, x.shape[-1] + 1))


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("rows", ROWS)
def test_tensors_change_before_backward_pass(loss, rows, soft, order):
    """As with PyTorch's own functions the backward pass raises, or computes the derivative at the old values."""
    check_changes(loss, rows, soft, "input", order)
    check_changes(loss, rows, soft, "target", order)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("rows", ROWS)
def test_weights_change_before_backward_pass(rows, soft, order):
    check_changes(LOSSES["EMDLoss weights, tree"], rows, soft, "weight", order)


def check_changes(loss, rows, soft, changed, order):
    x, target = batch(loss, rows, soft)
    loss = copy.deepcopy(loss)
    weight = getattr(loss, "weight", None)

    def derivative(then_change):
        leaf = x.clone().requires_grad_()
        tensors = {"input": leaf * 1, "target": target.clone(), "weight": weight}
        value = loss(tensors["input"], tensors["target"])
        if then_change:
            change(tensors[changed])
        (slope,) = torch.autograd.grad(value, leaf, create_graph=order == 2)
        if order == 2 and slope.requires_grad:
            (slope,) = torch.autograd.grad((slope * torch.arange(1.0, N + 1)).square().sum(), leaf)
        return slope

    try:
        expected = derivative(False)
    except RuntimeError as error:
        pytest.skip(f"not differentiable twice: {error}")
    try:
        found = derivative(True)
    except RuntimeError as error:
        message = str(error)
        assert "modified by an inplace operation" in message
    else:
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", [name for name in LOSSES if name not in ("EMDLoss, matrix", "EMDLoss rho=1, matrix")])
def test_gradients_of_single_examples(name, weighted, reduction):
    """``vmap(grad(loss))`` over rows and labels: what differentially private training computes."""
    loss = copy.deepcopy(LOSSES[name])
    terms = loss.losses if isinstance(loss, ew.MixedLoss) else [loss]
    for term in terms:
        term.reduction = reduction
        term.weight = weights() if weighted else None
    x, labels = batch(loss, 7)
    single = torch.func.vmap(torch.func.grad(lambda x, y: loss(x, y).sum()))(x, labels)
    expected = torch.stack([gradient(lambda x, y: loss(x, y).sum(), row, y) for row, y in zip(x, labels, strict=True)])
    torch.testing.assert_close(single, expected)
