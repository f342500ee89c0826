from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from earthwork_lab.reproduce import EXPERIMENTS, Request, breathing, run
from earthwork_lab.reproduce.breathing import HEADS, LOSSES, SpectrumNet, build, cross_entropy, fit, scored_steps
from earthwork_lab.reproduce.breathing_data import Recording, load_recordings, make_clips, simulate_recordings, spectrum
from lab.tests.reproduce.tiny import BREATHING, tiny_settings

RATE = 25.0


def tone(hertz: float, seconds: float = 130, rate: float = RATE) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate).astype(np.float32)


def write_npz(path: Path, names: tuple[str, ...] = ("a", "b"), **extra: object) -> Path:
    arrays = {f"{name}_{kind}": tone(0.2) for name in names for kind in ("chest", "nasal")}
    np.savez(path, fs=RATE, **arrays, **extra)
    return path


def test_npz_is_read(tmp_path: Path) -> None:
    write_npz(tmp_path / "x.npz")
    recordings = load_recordings(tmp_path)
    assert [(r.name, r.person, r.rate) for r in recordings] == [("a", "a", RATE), ("b", "b", RATE)]


def test_data_may_lie_in_folder_marsh(tmp_path: Path) -> None:
    (tmp_path / "marsh").mkdir()
    write_npz(tmp_path / "marsh" / "x.npz")
    assert len(load_recordings(tmp_path)) == 2


def test_equal_demographics_are_one_person(tmp_path: Path) -> None:
    write_npz(tmp_path / "x.npz", ("a", "b", "c"))
    (tmp_path / "subjects.csv").write_text("id,age,sex,nasal_fs_raw\na,24,M,500\nb,23,F,1000\nc,24,M,1000\n")
    assert [r.person for r in load_recordings(tmp_path)] == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,age\na,24,M\n", "line 2: expected 2 cells as in the first line, got 3"),
        ("id,age\na,24\na,25\n", "line 3: expected each id once, got 'a' again"),
        ("name,age\na,24\n", "expected one column id, got name, age"),
    ],
)
def test_demographics_that_cannot_be_read(text: str, message: str, tmp_path: Path) -> None:
    write_npz(tmp_path / "x.npz", ("a", "b", "c"))
    (tmp_path / "subjects.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        load_recordings(tmp_path)


def write_wfdb(folder: Path, names: list[str], record: str = "a01er") -> None:
    wfdb = pytest.importorskip("wfdb")
    signals = np.stack([tone(0.1 * (k + 1), rate=100.0) for k in range(len(names))], axis=1).astype(float)
    wfdb.wrsamp(record, 100, ["mV"] * len(names), names, signals, fmt=["16"] * len(names), write_dir=str(folder))


# wfdb's own, with pandas 3
OLD_PANDAS = pytest.mark.filterwarnings("ignore:The inplace keyword")


@OLD_PANDAS
@pytest.mark.parametrize(
    "names", [["Resp C", "Resp A", "Resp N", "SpO2"], ["ECG", "Chest", "Nasal airflow"], ["THOR RES", "NEW AIRFLOW"]]
)
def test_wfdb_channels_are_found_by_name(tmp_path: Path, names: list[str]) -> None:
    write_wfdb(tmp_path, names)
    (recording,) = load_recordings(tmp_path)
    assert (recording.name, recording.rate) == ("a01er", 100)
    chest, nasal = (
        i
        for i, name in enumerate(names)
        if name in ("Resp C", "Chest", "THOR RES", "Resp N", "Nasal airflow", "NEW AIRFLOW")
    )
    for signal, place in ((recording.chest, chest), (recording.nasal, nasal)):
        peak = spectrum(signal[None, :6000], 100.0, 60).argmax() + 1
        assert peak == pytest.approx(60 * 0.1 * (place + 1), abs=1)


@OLD_PANDAS
def test_records_without_channel_list_what(tmp_path: Path) -> None:
    write_wfdb(tmp_path, ["Resp C", "SpO2"])
    with pytest.raises(ValueError, match="expected a chest and a nasal channel, got the channels a01er: Resp C, SpO2"):
        load_recordings(tmp_path)


def test_empty_folder_says_what_was_looked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"looked for an \.npz file with `<id>_chest`.*or WFDB records.*found none"):
        load_recordings(tmp_path)


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere: no such folder"):
        load_recordings(tmp_path / "nowhere")


def test_npz_of_something_else_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", fs=25.0, a_chest=tone(0.2))
    with pytest.raises(ValueError, match=r"expected arrays `<id>_chest` and `<id>_nasal`.*got a_chest, fs"):
        load_recordings(tmp_path)


def test_broken_npz_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"data .*x\.npz: not a readable \.npz file: File is not a zip file"):
        load_recordings(tmp_path)


def test_unequal_lengths_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", fs=25.0, a_chest=tone(0.2), a_nasal=tone(0.2)[:-1])
    with pytest.raises(ValueError, match="recording a: expected two signals of one length"):
        load_recordings(tmp_path)


def test_spectrum_of_tone_is_in_its_bin() -> None:
    for breaths in (6, 15, 40):
        clip = tone(breaths / 60, seconds=60)
        power = spectrum(clip[None], RATE, 60)[0]
        assert power.argmax() + 1 == breaths
        assert power[breaths - 2 : breaths + 1].sum() > 0.99 * power.sum()


def test_clips_normalised_and_evenly_spread() -> None:
    clips = make_clips([Recording("a", "p", tone(0.2), tone(0.3), RATE)], 60, 5.0, 7, 60)
    assert clips.chest.shape == (7, 300)
    assert clips.spectra.shape == (7, 60)
    torch.testing.assert_close(clips.spectra.sum(-1), torch.ones(7))
    torch.testing.assert_close(clips.chest.std(-1, correction=0), torch.ones(7))
    assert clips.spectra.mean(0).argmax() + 1 == 18
    assert clips.persons == ("p",) * 7


def test_flat_clips_are_left_out() -> None:
    nasal = tone(0.3)
    nasal[: int(65 * RATE)] = 0
    clips = make_clips([Recording("a", "p", tone(0.2), nasal, RATE)], 60, 5.0, 2, 60)
    assert len(clips.persons) == 1


def test_recording_shorter_than_clip_is_named() -> None:
    with pytest.raises(ValueError, match="recording a: expected at least 60 s for one clip, got 30 s"):
        make_clips([Recording("a", "a", tone(0.2, 30), tone(0.2, 30), RATE)], 60, 5.0, 3, 60)


def test_rate_too_low_for_bins_is_named() -> None:
    with pytest.raises(ValueError, match="recording a: expected a rate of at least 2 Hz, got 1 Hz"):
        make_clips([Recording("a", "a", tone(0.2, 90, 1.0), tone(0.2, 90, 1.0), 1.0)], 60, 1.0, 3, 60)


def test_folds_split_by_person_cover_everyone() -> None:
    persons = [f"p{k}" for k in range(11)]
    settings = breathing.Settings()
    tests = []
    for fold in range(settings.folds):
        train, validation, test = breathing.split(persons, settings, fold)
        assert sorted(train + validation + test) == sorted(persons)
        assert len(validation) == settings.validation
        tests += test
    assert sorted(tests) == sorted(persons)


@pytest.mark.parametrize("head", HEADS)
def test_network_gives_distributions(head: str) -> None:
    torch.manual_seed(0)
    output = SpectrumNet(300, 60, 16, 11, head)(torch.randn(3, 300))
    torch.testing.assert_close(output.sum(-1), torch.ones(3))
    assert (output > 0).all()


@pytest.mark.parametrize("head", HEADS)
def test_training_equals_convolution_with_plain_adam(head: str) -> None:
    torch.manual_seed(0)
    chest, spectra = torch.randn(24, 100), torch.rand(24, 12).softmax(-1)
    fast = SpectrumNet(100, 12, 4, 11, head)
    # The same weights; a convolution puts all times of a filter side by side.
    layers = torch.nn.Sequential(
        torch.nn.Conv1d(1, 4, 11), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(360, 12)
    )
    layers[0].load_state_dict(fast.filters.state_dict())
    by_filter = fast.output.weight.detach().unflatten(-1, (90, 4)).mT.flatten(1)
    layers[3].load_state_dict({"weight": by_filter, "bias": fast.output.bias})

    def plain(x: torch.Tensor) -> torch.Tensor:
        scores = layers(x.unsqueeze(1))
        power = scores.exp() if head == "softmax" else scores.square() + 1e-9
        return power / power.sum(-1, keepdim=True)

    loss = build("EMD²", replace(breathing.Settings(), bins=12))
    optimisers = (
        torch.optim.Adam(fast.parameters(), lr=0.003, fused=True),
        torch.optim.Adam(layers.parameters(), lr=0.003, foreach=False),
    )
    for step in range(12):
        part = slice(8 * (step % 3), 8 * (step % 3) + 8)
        for network, optimiser in zip((fast, plain), optimisers, strict=True):
            optimiser.zero_grad()
            loss(network(chest[part]), spectra[part]).backward()
            optimiser.step()
    torch.testing.assert_close(fast(chest), plain(chest), rtol=1e-4, atol=1e-6)
    assert (fast.output.weight.unflatten(-1, (90, 4)).mT.flatten(1) - by_filter).abs().max() > 0.01


def test_test_set_scored_ten_times_in_first_epoch() -> None:
    assert scored_steps(100, 3) == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 150, 200, 250, 300]


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_zero_or_smallest_at_target(name: str) -> None:
    settings = replace(breathing.Settings(), bins=8)
    loss = build(name, settings)
    q = torch.tensor([[0.05, 0.05, 0.3, 0.4, 0.05, 0.05, 0.05, 0.05]])
    far = q.flip(-1)
    assert loss(q, q) < loss(far, q)


def test_loss_overflows_stops_and_recorded() -> None:
    chest, spectra = torch.randn(20, 100), torch.rand(20, 60).softmax(-1)
    settings = replace(breathing.Settings(), epochs=2, batch=10)
    pair = (chest, spectra)
    found = fit(settings, "SD as printed", "squares", 0.001, 0, pair, pair, pair)
    assert 1 <= found["failed_at_step"] <= 4
    assert np.isnan([found["test_emd"][-1], found["validation_emd"]]).all()
    assert len(found["test_emd"]) == len(found["epochs"])


def test_cross_entropy_is_that_of_torch() -> None:
    torch.manual_seed(0)
    logits, q = torch.randn(4, 7), torch.rand(4, 7).softmax(-1)
    expected = torch.nn.functional.cross_entropy(logits, q)
    torch.testing.assert_close(cross_entropy(logits.softmax(-1), q), expected)


@pytest.mark.parametrize("head", HEADS)
def test_training_is_same_again(head: str) -> None:
    simulated = make_clips(simulate_recordings(2, 2, 5.0, 0), 30, 5.0, 8, 20)
    pair = (simulated.chest, simulated.spectra)
    first, second = (fit(BREATHING, "EMD²", head, 0.001, 3, pair, pair, pair) for _ in range(2))
    assert first == second
    assert first["test_emd"][-1] < first["test_emd"][0]


def test_simulated_data_are_labelled(tmp_path: Path) -> None:
    with tiny_settings():
        plan = EXPERIMENTS["breathing"].plan(Request(quick=True, out=tmp_path))
    assert plan.data.startswith("SIMULATED breathing, not real data")


def test_too_few_persons_are_named(tmp_path: Path) -> None:
    write_npz(tmp_path / "x.npz")
    with tiny_settings(), pytest.raises(ValueError, match="expected at least 3 persons for 2 folds, got 2"):
        run(EXPERIMENTS["breathing"], Request(quick=True, out=tmp_path, data=tmp_path))


def test_real_recordings_are_29_of_28_persons() -> None:
    folder = os.environ.get("EARTHWORK_DATA")
    if not folder or not (Path(folder) / "marsh").is_dir():
        pytest.skip("needs the folder marsh in $EARTHWORK_DATA")
    recordings = load_recordings(Path(folder))
    assert (len(recordings), len({r.person for r in recordings})) == (29, 28)
    assert {r.person for r in recordings if r.name in ("0018", "0083")} == {"0018"}
