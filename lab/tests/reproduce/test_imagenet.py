from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import earthwork as ew
from earthwork_lab.reproduce import EXPERIMENTS, Request, imagenet, run
from lab.tests.reproduce.tiny import write_runs


def test_finished_runs_are_taken_as_they_are(tmp_path: Path) -> None:
    runs = write_runs(tmp_path / "runs")
    results = run(EXPERIMENTS["imagenet"], Request(out=tmp_path / "out", runs=runs))
    entry = results.summary["few"]["emd2"]
    assert entry["epochs"] == [1, 2, 3]
    assert entry["seeds"] == [0, 1]
    assert entry["last_top1"]["mean"] == pytest.approx(31.05)
    assert entry["emd"]["mean"] == pytest.approx([6.9, 5.9, 4.9])
    assert set(results.summary) == {"few", "all"}
    assert results.data == "photos"
    assert "/some/where" not in (tmp_path / "out" / "imagenet.json").read_text()


def test_epochs_without_validation_left_out(tmp_path: Path) -> None:
    runs = write_runs(tmp_path / "runs")
    for path in runs.rglob("result.json"):
        result = json.loads(path.read_text())
        del result["rows"][0]["top1"], result["rows"][0]["emd"]
        path.write_text(json.dumps(result))
    results = run(EXPERIMENTS["imagenet"], Request(out=tmp_path / "out", runs=runs))
    assert results.summary["few"]["emd2"]["epochs"] == [2, 3]
    assert results.summary["few"]["emd2"]["emd"]["mean"] == pytest.approx([5.9, 4.9])


def test_simulated_runs_stay_labelled(tmp_path: Path) -> None:
    runs = write_runs(tmp_path / "runs")
    for config in runs.rglob("config.yaml"):
        config.write_text(config.read_text().replace("/some/where/photos.tar.xz", "simulated"))
    assert EXPERIMENTS["imagenet"].plan(Request(runs=runs)).data == "SIMULATED features, not images"


def test_folder_without_runs_says_what_looked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"looked for <loss>/seed-<n>/result\.json beside a config\.yaml"):
        run(EXPERIMENTS["imagenet"], Request(out=tmp_path, runs=tmp_path))


def test_images_are_found(tmp_path: Path) -> None:
    (tmp_path / "imagenet" / "train").mkdir(parents=True)
    assert imagenet.find_images(tmp_path) == tmp_path / "imagenet"
    archive = tmp_path / "other" / "tiny-imagenet-200" / "x.tar.xz"
    archive.parent.mkdir(parents=True)
    archive.touch()
    assert imagenet.find_images(tmp_path / "other") == archive


def test_folder_without_images_says_what_looked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"looked for a folder with train/ and val/, or an archive of one"):
        imagenet.find_images(tmp_path)


def test_permuted_leaves_keep_tree_move_classes() -> None:
    tree = ew.trees.cifar10()
    permuted = imagenet.permute_leaves(tree, seed=1)
    assert sorted(permuted.bins.tolist()) == sorted(tree.bins.tolist())
    assert sorted(permuted.distances().flatten().tolist()) == sorted(tree.distances().flatten().tolist())
    assert not torch.equal(permuted.distances(), tree.distances())


def test_final_scores_are_those_of_library() -> None:
    torchmetrics = pytest.importorskip("torchmetrics.functional.classification")
    tree = ew.trees.cifar10()
    torch.manual_seed(0)
    p, labels = (3 * torch.randn(200, 10)).softmax(-1), torch.randint(10, (200,))
    found = imagenet.scores_of(p, labels, tree)
    q = torch.nn.functional.one_hot(labels, 10).float()
    calibration = torchmetrics.multiclass_calibration_error(p, labels, 10, n_bins=15)
    assert found["emd"] == pytest.approx(ew.emd(p, q, tree).mean().item(), rel=1e-5)
    assert found["calibration"] == pytest.approx(100 * calibration.item(), rel=1e-4)
    assert found["top1"] == pytest.approx(100 * (p.argmax(-1) == labels).float().mean().item())
    distances = tree.distances()[p.argmax(-1), labels]
    assert found["distance"] == pytest.approx(distances.mean().item())
    assert found["severity"] == pytest.approx(distances[distances > 0].mean().item())
    decided = tree.distances()[(p.double() @ tree.distances()).argmin(-1), labels].mean().item()
    assert found["distance_decided"] == pytest.approx(decided)
    assert set(found) == set(imagenet.FINAL)


def test_settings_published_ones_and_longer() -> None:
    settings = imagenet.TINY
    assert settings.losses[:4] == ("ce", "emd2", "0.5*emd2+0.5*ce", "0.25*sd+0.75*ce")
    assert (settings.batch, settings.per_class, settings.precision) == (128, 20, "bf16-mixed")
    assert settings.epochs[0] >= 100
    assert settings.epochs[1] >= 20
    assert settings.seeds >= 5
    assert settings.controls == ("0.5*emd2+0.5*ce",)


@pytest.mark.parametrize(("gpu", "precision"), [(True, "bf16-mixed"), (False, "32-true")])
def test_float32_on_processor(gpu: bool, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightning")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    (tmp_path / "tiny-imagenet" / "train").mkdir(parents=True)
    plan = EXPERIMENTS["imagenet"].plan(Request(out=tmp_path, data=tmp_path))
    assert plan.settings["precision"] == precision
    assert plan.settings["epochs"] == imagenet.TINY.epochs


def test_run_on_simulated_features_labelled_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightning")
    from dataclasses import replace

    small = replace(
        imagenet.QUICK, losses=("ce",), controls=("emd2",), epochs=(1, 1), seeds=1, tree="cifar10", per_class=2
    )
    monkeypatch.setattr(imagenet, "QUICK", small)
    results = run(EXPERIMENTS["imagenet"], Request(quick=True, out=tmp_path, share="all"))
    assert set(results.summary) == {"all"}
    results = run(EXPERIMENTS["imagenet"], Request(quick=True, out=tmp_path, share="few"))
    assert set(results.summary) == {"few", "all"}
    results = run(EXPERIMENTS["imagenet"], Request(quick=True, out=tmp_path))
    assert results.data == "SIMULATED features, not images"
    assert list(results.parts) == [
        "all, ce, seed 0",
        "few, ce, seed 0",
        "few, permuted emd2, seed 0",
    ]
    assert list(results.summary) == ["few", "all"]
    assert set(results.summary["few"]["permuted emd2"]["final"]) == set(imagenet.FINAL)
    assert (tmp_path / "imagenet-runs" / "few" / "ce-seed-0" / "ce" / "seed-0" / "result.json").is_file()


def test_there_are_two_shares(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="share: expected few or all, got 'some'"):
        EXPERIMENTS["imagenet"].plan(Request(out=tmp_path, share="some"))
