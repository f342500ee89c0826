"""Losses and metrics survive what frameworks do to modules: equal values and gradients before and after.

Every loss and metric of the catalogue, with the real packages.
"""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from packaging.version import Version
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

import earthwork as ew
from tests.catalogue import CLASSES, LOSS_CASES, METRIC_CASES, SPACES, make_loss, make_metric, takes_weight, weights
from tests.processes import start

FEATURES = 4
# Below and above the number of entries from which kernels are called.
ROWS = (3, 60)


class Network(nn.Module):
    """A classifier that returns its losses, and that has metrics."""

    def __init__(self, losses=(), metrics=()):
        super().__init__()
        self.head = nn.Linear(FEATURES, CLASSES)
        self.losses, self.metrics = nn.ModuleList(losses), nn.ModuleList(metrics)

    def forward(self, x, labels):
        logits = self.head(x)
        return torch.stack([loss(logits, labels) for loss in self.losses])


def with_losses(*cases):
    """Every loss, and every loss that has class weights with them."""
    cases = cases or LOSS_CASES
    losses = [make_loss(case) for case in cases]
    return Network(losses + [make_loss(case, weight=weights()) for case in cases if takes_weight(case)])


def with_metrics(*cases):
    return Network(metrics=[make_metric(case) for case in cases or METRIC_CASES])


def batch(rows):
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, FEATURES, generator=generator), torch.arange(rows) % CLASSES


def probabilities(rows):
    x, labels = batch(rows)
    return torch.cat([x, x], -1)[:, :CLASSES].softmax(-1), labels


def results(network):
    """The losses, their gradients by the input and by all parameters, and the metrics of fixed probabilities."""
    found = []
    for rows in ROWS:
        x, labels = batch(rows)
        if len(network.losses):
            values = network(x.requires_grad_(), labels)
            slopes = torch.linspace(1, 2, len(values), dtype=values.dtype)
            found += [values.detach(), *torch.autograd.grad(values, [x, *network.parameters()], slopes)]
        found += [metric(*probabilities(rows)) for metric in network.metrics]
    return found


def assert_same(network, expected, tolerance=0.0):
    found = results(network)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def copied(network, make, folder):
    return copy.deepcopy(network)


def pickled(network, make, folder):
    return pickle.loads(pickle.dumps(network))


def saved_whole(network, make, folder):
    torch.save(network, folder / "network.pt")
    return torch.load(folder / "network.pt", weights_only=False)


def saved(network, make, folder):
    torch.save(network.state_dict(), folder / "state.pt")
    fresh = make()
    fresh.load_state_dict(torch.load(folder / "state.pt", weights_only=True))
    return fresh


def saved_by_safetensors(network, make, folder):
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_model(network, str(folder / "network.safetensors"))
    fresh, twin = make(), make()
    assert safetensors.load_model(fresh, folder / "network.safetensors") == (set(), [])
    # As a dictionary it must have no two names for one tensor.
    safetensors.save_file(network.state_dict(), folder / "state.safetensors")
    twin.load_state_dict(safetensors.load_file(folder / "state.safetensors"))
    assert_same(twin, results(network))
    return fresh


def shared_memory(network, make, folder):
    return network.share_memory()


def averaged(network, make, folder):
    """Of the same network, so that the average is the network."""
    averages = [
        AveragedModel(network, use_buffers=True),
        # Decays at which a table of small integers is truncated.
        AveragedModel(network, avg_fn=get_ema_avg_fn(0.9995), use_buffers=True),
        AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True),
    ]
    for average in averages:
        for _ in range(3):
            average.update_parameters(network)
    expected = results(network)
    for average in averages[1:]:
        # The weights of the parts add up to 1 up to rounding.
        assert_same(average.module, expected, tolerance=1e-5)
    return averages[0].module


SCENARIOS = {
    function.__name__: function
    for function in (copied, pickled, saved_whole, saved, saved_by_safetensors, shared_memory, averaged)
}


def on_meta(network, make, folder):
    with torch.device("meta"):
        fresh = make()
    assert all(x.is_meta for x in [*fresh.parameters(), *fresh.buffers()])
    fresh.to_empty(device="cpu")
    fresh.load_state_dict(network.state_dict())
    return fresh


def on_meta_assigned(network, make, folder):
    with torch.device("meta"):
        fresh = make()
    fresh.load_state_dict(network.state_dict(), assign=True)
    return fresh


def functional(network, make, folder):
    fresh, state = make(), {**dict(network.named_parameters()), **dict(network.named_buffers())}
    x, labels = batch(60)
    torch.testing.assert_close(torch.func.functional_call(fresh, state, (x, labels)), network(x, labels))
    return network


# Uninitialised memory would stay in the states of any torchmetrics metric, which are not loaded.
LOSS_SCENARIOS = {**SCENARIOS, **{function.__name__: function for function in (on_meta, on_meta_assigned, functional)}}


def check_scenario(scenario, make, folder):
    network = make()
    expected = results(network)
    assert_same(LOSS_SCENARIOS[scenario](network, make, folder), expected)


def check_types(make):
    """Losses in half precision, as ``model.half()`` makes them, compute the same of the same input."""
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        network = make()
        # Parameters are rounded, as those of any network.
        for parameter in network.losses.parameters():
            parameter.data = parameter.data.to(dtype).float()
        expected = results(network)
        for loss in network.losses.to(dtype).modules():
            if isinstance(loss, nn.CrossEntropyLoss):
                loss.float()  # it wants weights of the type of the input
        assert_same(network, [x.to(y) for x, y in zip(expected, results(network), strict=True)], tolerance=1e-6)


def check_state(make, cross_entropy):
    """What is saved is what cross entropy saves, so that each loads what the other has saved."""
    ours = nn.ModuleDict({"body": nn.Linear(2, 2), "loss": make()})
    theirs = nn.ModuleDict({"body": nn.Linear(2, 2), "loss": cross_entropy})
    ours.load_state_dict(theirs.state_dict(), strict=True)
    theirs.load_state_dict(ours.state_dict(), strict=True)


@pytest.mark.parametrize("scenario", LOSS_SCENARIOS)
@pytest.mark.parametrize("case", LOSS_CASES)
def test_losses(case, scenario, tmp_path):
    check_scenario(scenario, lambda: with_losses(case), tmp_path)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("case", METRIC_CASES)
def test_metrics(case, scenario, tmp_path):
    check_scenario(scenario, lambda: with_metrics(case), tmp_path)


@pytest.mark.parametrize("case", LOSS_CASES)
def test_losses_in_other_types(case):
    check_types(lambda: with_losses(case))


@pytest.mark.parametrize("case", METRIC_CASES)
def test_metrics_in_other_types(case):
    """Sums stay in double precision, as torchmetrics leaves them."""
    network = with_metrics(case)
    expected = results(network)
    for dtype in ("half", "bfloat16", "float"):
        assert_same(getattr(network, dtype)(), expected)


@pytest.mark.parametrize("case", METRIC_CASES)
def test_sums_of_metrics_are_saved(case, tmp_path):
    metric, fresh = make_metric(case), make_metric(case)
    metric.persistent(True)
    fresh.persistent(True)
    p, labels = probabilities(60)
    metric.update(p, labels)
    torch.save(metric.state_dict(), tmp_path / "state.pt")
    fresh.load_state_dict(torch.load(tmp_path / "state.pt"))
    twins = fresh, copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))
    for one in (metric, *twins):
        one.update(p.flip(0), labels)
    for twin in twins:
        torch.testing.assert_close(twin.compute(), metric.compute(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("case", LOSS_CASES)
def test_state_is_that_of_cross_entropy(case):
    loss = make_loss(case)
    if case.startswith("EMDLoss learned"):
        assert list(loss.state_dict()) == ["costs.log_costs"]
        return
    assert not loss.state_dict()
    assert not [*loss.parameters(), *loss.buffers()]
    check_state(lambda: make_loss(case), nn.CrossEntropyLoss())
    if takes_weight(case) and not isinstance(loss, ew.MixedLoss):
        check_state(lambda: make_loss(case, weight=weights()), nn.CrossEntropyLoss(weight=weights()))


@pytest.mark.parametrize("case", METRIC_CASES)
def test_metrics_have_no_state_but_their_sums(case):
    metric = make_metric(case)
    assert not metric.state_dict()
    assert not [*metric.parameters(), *metric.buffers()]


def change_parameters(network):
    """As training would."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += torch.linspace(0, 0.5, parameter.numel()).view_as(parameter)


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers")


def config(transformers):
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.BertConfig(vocab_size=11, max_position_embeddings=8, num_labels=CLASSES, **sizes)


def test_pretrained_model_gets_loss(transformers, tmp_path):
    """From a checkpoint without one. Whatever is a buffer would be uninitialised memory."""

    class Rater(transformers.BertForSequenceClassification):
        def __init__(self, config):
            super().__init__(config)
            self.losses = nn.ModuleList(map(make_loss, cases))

    cases = [case for case in LOSS_CASES if not case.startswith("EMDLoss learned")]
    transformers.BertForSequenceClassification(config(transformers)).save_pretrained(tmp_path)
    rater = Rater.from_pretrained(tmp_path)
    x, labels = torch.randn(60, CLASSES), torch.arange(60) % CLASSES
    for case, loss in zip(cases, rater.losses, strict=True):
        assert torch.equal(loss(x, labels), make_loss(case)(x, labels)), case


def test_pretrained_models(transformers, tmp_path):
    """Class weights and learned costs are initialised as Hugging Face says, and saved and loaded."""

    class Rater(transformers.BertForSequenceClassification):
        def __init__(self, config):
            super().__init__(config)
            self.network = with_losses()

        def _init_weights(self, module):
            super()._init_weights(module)
            if isinstance(module, ew.LearnedCosts):
                module.reset_parameters()
            elif getattr(module, "weight", None) is not None and module.weight.shape == (CLASSES,):
                module.weight = weights()

    transformers.BertForSequenceClassification(config(transformers)).save_pretrained(tmp_path / "bert")
    rater = Rater.from_pretrained(tmp_path / "bert")
    expected = with_losses()
    expected.head = rater.network.head
    assert_same(rater.network, results(expected))
    change_parameters(rater)
    rater.save_pretrained(tmp_path / "rater")
    assert_same(Rater.from_pretrained(tmp_path / "rater").network, results(rater.network))


@pytest.mark.filterwarnings("ignore")  # of lightning itself
def test_lightning_averages_weights(tmp_path):
    lightning = pytest.importorskip("lightning")
    callbacks = pytest.importorskip("lightning.pytorch.callbacks")
    if not hasattr(callbacks, "EMAWeightAveraging"):
        pytest.skip("lightning has no EMAWeightAveraging")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = Network(with_losses().losses, with_metrics().metrics)

        def training_step(self, data):
            return self.network(*data).mean()

        def validation_step(self, data):
            with torch.enable_grad():
                self.found = results(self.network)

        def configure_optimizers(self):
            # Nothing is learned, so that the average is what the network was.
            return torch.optim.SGD(self.parameters(), lr=0.0)

    module = Module()
    expected = results(module.network)
    loader = torch.utils.data.DataLoader([*zip(*batch(4), strict=True)], batch_size=1)
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=[callbacks.EMAWeightAveraging(decay=0.9)],
        default_root_dir=tmp_path,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        logger=False,
        inference_mode=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(module, loader, loader)
    for found in (module.found, results(module.network)):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    trainer.save_checkpoint(tmp_path / "module.ckpt")
    assert_same(Module.load_from_checkpoint(tmp_path / "module.ckpt").network, results(module.network))


@pytest.mark.filterwarnings("ignore")  # of accelerate itself
def test_accelerate(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    try:
        network = accelerator.prepare(with_losses())
        expected = results(network)
        accelerator.save_state(tmp_path / "state")
        change_parameters(network)
        accelerator.load_state(tmp_path / "state")
        assert_same(accelerator.unwrap_model(network), expected)
        accelerator.save_model(network, tmp_path / "model")
        with accelerate.init_empty_weights(include_buffers=True):
            fresh = with_losses()
        accelerate.load_checkpoint_and_dispatch(fresh, tmp_path / "model", device_map={"": "cpu"})
        assert_same(fresh, expected)
    finally:
        accelerator.end_training()
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def assert_same_in_one_thread(network, expected):
    torch.set_num_threads(1)  # a forked process has lost the threads that PyTorch's own operators would wait for
    assert_same(network, expected)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes(method):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} on this system")
    network = Network(with_losses().losses, with_metrics().metrics)
    expected = results(network)
    context = torch.multiprocessing.get_context(method)
    process = context.Process(target=assert_same_in_one_thread, args=(network, expected))
    process.start()
    process.join(300)
    process.kill()
    assert process.exitcode == 0
    assert_same(network, expected)


def gradients(network):
    network(*batch(60)).sum().backward()
    found = [parameter.grad for parameter in network.parameters()]
    return [grad.full_tensor() if hasattr(grad, "full_tensor") else grad for grad in found]


def compare_parallel(rank, world_size, group):
    """The gradients of parallel networks with those of the same networks in one process; run by each process."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{group}", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    network = with_losses()
    expected = gradients(copy.deepcopy(network))
    replicated, sharded = copy.deepcopy(network), copy.deepcopy(network)
    torch.testing.assert_close(gradients(DistributedDataParallel(replicated)), expected)
    if Version(torch.__version__) >= Version("2.10"):  # before, `fully_shard` is wrong on CPUs
        mesh = init_device_mesh("cpu", (world_size,))
        for module in (sharded.head, sharded):
            fully_shard(module, mesh=mesh)
        torch.testing.assert_close(gradients(sharded), expected)
    torch.distributed.destroy_process_group()


def test_parallel_networks(tmp_path):
    start(compare_parallel, 2, 2, tmp_path / "group")


def test_threads():
    """Some call the losses while others move and load them."""
    losses = nn.ModuleList([*with_losses().losses])
    state = copy.deepcopy(losses.state_dict())
    x, labels = torch.randn(60, CLASSES), torch.arange(60) % CLASSES

    def call():
        found = []
        for loss in losses:
            # What is loaded in place cannot be differentiated meanwhile.
            logits = x.clone().requires_grad_(not loss.state_dict())
            value = loss(logits, labels)
            found += [value.detach(), *(torch.autograd.grad(value, logits) if logits.requires_grad else ())]
        return found

    def move():
        while not done:
            losses.to("cpu")
            losses.load_state_dict(state)

    expected, done = call(), []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(6) as pool:
            try:
                movers = [pool.submit(move) for _ in range(2)]
                callers = [pool.submit(call) for _ in range(12)]
                for caller in callers:
                    torch.testing.assert_close(caller.result(), expected, rtol=0, atol=0)
            finally:
                done.append(True)
            for mover in movers:
                mover.result()
    finally:
        sys.setswitchinterval(interval)


def test_annealing_leaves_no_memory_behind():
    """A table for each value of ``beta`` would be 10,000 tables of 8 kB or more."""
    psutil = pytest.importorskip("psutil")
    tree = ew.Tree([-1, *(node // 2 for node in range(999))])
    loss, process = ew.SoftLabelLoss(tree), psutil.Process()
    logits, labels = torch.randn(2, tree.num_bins), torch.tensor([0, 1])
    for step in range(11_000):
        loss.beta = 1 + step / 1000
        loss(logits, labels)
        if step == 1000:
            before = process.memory_info().rss
    assert process.memory_info().rss - before < 2**25


class IndexBuffer(ew.EMDLoss):
    """A loss as nobody should write it: a moving average truncates its table."""

    def __init__(self, space, **options):
        super().__init__(space, **options)
        self.register_buffer("order", torch.arange(7, 7 + CLASSES), persistent=False)

    def forward(self, input, target, mask=None):
        return super().forward(input[:, self.order - 7], target, mask)


class CostBuffer(ew.EMDLoss):
    """Another: its costs are saved, shared and rounded."""

    def __init__(self, space, **options):
        super().__init__(space, **options)
        self.register_buffer("own_costs", torch.linspace(1, 3, CLASSES))

    def forward(self, input, target, mask=None):
        return super().forward(input * self.own_costs, target, mask)


class SharedBuffer(ew.MixedLoss):
    """Another: two names for one tensor."""

    def __init__(self, space, **options):
        super().__init__((1.0, CostBuffer(space, **options)), (1.0, CostBuffer(space, **options)))
        self.losses[1].own_costs = self.losses[0].own_costs


@pytest.mark.parametrize(
    ("wrong", "detected"),
    [
        (IndexBuffer, {"averaged"}),
        (CostBuffer, {"state", "types"}),
        (SharedBuffer, {"state", "types", "saved_by_safetensors"}),
    ],
)
def test_loss_with_tables_in_buffers_detected(wrong, detected, tmp_path):
    def make():
        return Network([wrong(SPACES["chain"])])

    checks = {name: partial(check_scenario, name, make, tmp_path) for name in LOSS_SCENARIOS}
    checks["types"] = lambda: check_types(make)
    checks["state"] = lambda: check_state(lambda: wrong(SPACES["chain"]), nn.CrossEntropyLoss())
    failed = set()
    for name, check in checks.items():
        try:
            check()
        except (AssertionError, RuntimeError, IndexError, NotImplementedError):
            failed.add(name)
    assert failed >= detected
