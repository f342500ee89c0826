"""Recordings of chest movement and nasal airflow (npz, WFDB or simulated), cut into clips with their spectra."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from earthwork.array_files import ArrayFile
from earthwork.files import parse_csv, read_text
from earthwork_lab.extras import require

Signal = NDArray[np.float32]

_CHEST = re.compile(r"resp\.? ?c\b|chest|thor|\brib|\brip\b|imped", re.IGNORECASE)
_NASAL = re.compile(r"resp\.? ?n\b|nas|nose|therm|air ?flow|\bflow", re.IGNORECASE)
_LOOKED_FOR = (
    "an .npz file with `<id>_chest`, `<id>_nasal` and the rate `fs`, or WFDB records (.hea) with a chest and a nasal "
    "channel; also in its subfolder marsh"
)


@dataclass(frozen=True)
class Recording:
    """One recording session of one person.

    Attributes:
        name: The name of the recording.
        person: The person; all recordings of a person are in the same fold.
        chest: Chest movement.
        nasal: Nasal airflow, of the same length.
        rate: Samples per second.
    """

    name: str
    person: str
    chest: Signal
    nasal: Signal
    rate: float


def load_recordings(folder: Path) -> list[Recording]:
    """The recordings in a folder (or an .npz file).

    Raises:
        ValueError: If there are none (the message says what was looked for), or if a record lacks a channel.
    """
    if folder.is_file():
        return _from_npz(folder)
    if not folder.is_dir():
        raise ValueError(f"data {folder}: no such folder")
    for place in (folder, folder / "marsh"):
        archives = sorted(place.glob("*.npz"))
        headers = sorted(place.glob("*.hea"))
        if archives:
            return [recording for archive in archives for recording in _from_npz(archive)]
        if headers:
            return _from_wfdb(headers)
    raise ValueError(f"data {folder}: looked for {_LOOKED_FOR}, and found none")


def _from_npz(path: Path) -> list[Recording]:
    fields = _fields(path)
    names = [name.removesuffix("_chest") for name in fields if name.endswith("_chest")]
    names = [name for name in names if f"{name}_nasal" in fields]
    if "fs" not in fields or not names:
        raise ValueError(
            f"data {path}: expected arrays `<id>_chest` and `<id>_nasal` and the rate `fs`, "
            f"got {', '.join(sorted(fields)[:8]) or 'nothing'}"
        )
    persons = _persons(path.with_name("subjects.csv"))
    rate = float(fields["fs"])
    return [
        _recording(name, persons.get(name, name), fields[f"{name}_chest"], fields[f"{name}_nasal"], rate)
        for name in names
    ]


def _fields(path: Path) -> dict[str, NDArray[Any]]:
    try:
        file = ArrayFile(path)
        return {name: file.read(name) for name in file.members}
    except ValueError as error:
        raise ValueError(f"data {error}") from error


def _persons(path: Path) -> dict[str, str]:
    """For each recording the first one with the same demographics, which probably belongs to the same person."""
    if not path.is_file():
        return {}
    (_, header), *rows = parse_csv(read_text(path), f"data {path}")
    if header.count("id") != 1:
        raise ValueError(f"data {path}: expected one column id, got {', '.join(header)}")
    first: dict[tuple[str, ...], str] = {}
    persons: dict[str, str] = {}
    for line, cells in rows:
        name = cells[header.index("id")]
        if name in persons:
            raise ValueError(f"data {path}, line {line}: expected each id once, got {name!r} again")
        facts = tuple(cell for key, cell in zip(header, cells, strict=True) if key != "id" and "fs" not in key)
        persons[name] = first.setdefault(facts, name)
    return persons


def _from_wfdb(headers: list[Path]) -> list[Recording]:
    wfdb = require("wfdb", "reading WFDB records")
    recordings, channels = [], {}
    for header in headers:
        record = wfdb.rdheader(str(header.with_suffix("")))
        names = list(record.sig_name or [])
        chest, nasal = (
            next((i for i, name in enumerate(names) if kind.search(name)), None) for kind in (_CHEST, _NASAL)
        )
        if chest is None or nasal is None:
            channels[header.stem] = names
            continue
        signals = wfdb.rdrecord(str(header.with_suffix("")), channels=[chest, nasal]).p_signal
        recordings.append(_recording(header.stem, header.stem, signals[:, 0], signals[:, 1], float(record.fs)))
    if not recordings:
        found = "; ".join(f"{name}: {', '.join(names) or 'none'}" for name, names in channels.items())
        raise ValueError(f"data {headers[0].parent}: expected a chest and a nasal channel, got the channels {found}")
    return recordings


def _recording(
    name: str, person: str, chest: NDArray[np.floating], nasal: NDArray[np.floating], rate: float
) -> Recording:
    if chest.shape != nasal.shape or chest.ndim != 1:
        raise ValueError(
            f"recording {name}: expected two signals of one length, got shapes {chest.shape}, {nasal.shape}"
        )
    # Gaps are NaN in WFDB records.
    chest, nasal = (np.nan_to_num(x - np.nanmean(x)).astype(np.float32) for x in (chest, nasal))
    return Recording(name, person, chest, nasal, rate)


def simulate_recordings(persons: int, minutes: float, rate: float, seed: int) -> list[Recording]:
    """Simulated breathing: a drifting rate, uneven breaths, and a chest that at times moves for other reasons.

    Example:
        >>> from earthwork_lab.reproduce.breathing_data import simulate_recordings
        >>> simulate_recordings(1, 2, 5.0, seed=0)[0].chest.shape
        (600,)
    """
    return [
        _simulate(f"simulated-{person}", minutes, rate, np.random.default_rng([seed, person]))
        for person in range(persons)
    ]


def _simulate(name: str, minutes: float, rate: float, rng: np.random.Generator) -> Recording:
    count = int(minutes * 60 * rate)
    wander = _smooth(rng.standard_normal(count), int(40 * rate))
    frequency = np.clip(rng.uniform(0.13, 0.4) * (1 + 0.25 * wander), 0.08, 0.7)
    phase = 2 * np.pi * np.cumsum(frequency) / rate
    depth = 1 + 0.3 * _smooth(rng.standard_normal(count), int(15 * rate))
    nasal = depth * (np.sin(phase) + 0.3 * np.sin(2 * phase + rng.uniform(0, 2 * np.pi)))
    lag = rng.uniform(-0.8, 0.8)
    moving = np.maximum(_smooth(rng.standard_normal(count), int(20 * rate)) - 1, 0)
    chest = depth * np.sin(phase + lag) + 2 * moving * _smooth(rng.standard_normal(count), int(rate))
    heart = 0.1 * np.sin(2 * np.pi * rng.uniform(0.9, 1.5) * np.arange(count) / rate)
    noise = 0.1 * rng.standard_normal((2, count))
    return _recording(name, name, chest + heart + noise[0], nasal + noise[1], rate)


def _smooth(noise: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    window = np.hanning(max(width, 3))
    smooth = np.convolve(noise, window, mode="same")
    return smooth / max(float(smooth.std()), 1e-12)


@dataclass(frozen=True)
class Clips:
    """The clips of several recordings.

    Attributes:
        chest: Chest movement, each clip with mean 0 and variance 1, shape ``[clips, samples]``.
        spectra: The share of the nasal power in each frequency bin, shape ``[clips, bins]``.
        persons: The person of each clip.
    """

    chest: Tensor
    spectra: Tensor
    persons: tuple[str, ...]

    def of(self, persons: Sequence[str]) -> tuple[Tensor, Tensor]:
        """The inputs and targets of some persons."""
        index = torch.tensor([i for i, person in enumerate(self.persons) if person in persons])
        return self.chest[index], self.spectra[index]


def make_clips(recordings: Sequence[Recording], seconds: float, rate: float, per_recording: int, bins: int) -> Clips:
    """Evenly spaced, overlapping clips, and the power from 1/seconds to bins/seconds Hz.

    Raises:
        ValueError: If a recording is shorter than a clip, or its rate is too low for the bins.
    """
    parts = [_clips(recording, seconds, rate, per_recording, bins) for recording in recordings]
    persons = [r.person for r, (chest, _) in zip(recordings, parts, strict=True) for _ in range(len(chest))]
    chest, spectra = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Clips(torch.from_numpy(chest), torch.from_numpy(spectra), tuple(persons))


def _clips(
    recording: Recording, seconds: float, rate: float, count: int, bins: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    length = round(seconds * recording.rate)
    have = len(recording.chest)
    if have < length:
        raise ValueError(
            f"recording {recording.name}: expected at least {seconds:g} s for one clip, got {have / recording.rate:g} s"
        )
    if bins / seconds > recording.rate / 2:
        raise ValueError(
            f"recording {recording.name}: expected a rate of at least {2 * bins / seconds:g} Hz, "
            f"got {recording.rate:g} Hz"
        )
    starts = np.unique(np.linspace(0, have - length, count).round().astype(int))
    nasal = np.stack([recording.nasal[start : start + length] for start in starts])
    chest = np.stack([recording.chest[start : start + length] for start in starts])
    spectra = spectrum(nasal, recording.rate, bins)
    # A detached sensor records a constant, which has no spectrum.
    good = (spectra.sum(-1) > 0) & (chest.std(-1) > 0)
    slow = _resampled(chest[good], recording.rate, rate, round(seconds * rate))
    slow = (slow - slow.mean(-1, keepdims=True)) / np.maximum(slow.std(-1, keepdims=True), 1e-12)
    spectra = spectra[good] / spectra[good].sum(-1, keepdims=True)
    return slow.astype(np.float32), spectra.astype(np.float32)


def spectrum(clips: NDArray[np.float32], rate: float, bins: int) -> NDArray[np.float64]:
    """The periodogram (Hann window) of each clip without its mean, from the first frequency above 0."""
    from scipy.signal import periodogram

    _, power = periodogram(clips.astype(np.float64), rate, window="hann", detrend="constant")
    return np.asarray(power[:, 1 : bins + 1], dtype=np.float64)


def _resampled(clips: NDArray[np.float32], rate: float, wanted: float, length: int) -> NDArray[np.float64]:
    from scipy.signal import resample_poly

    ratio = Fraction(wanted / rate).limit_denominator(1000)
    if ratio == 1:
        return clips.astype(np.float64)
    return np.asarray(resample_poly(clips.astype(np.float64), ratio.numerator, ratio.denominator, axis=-1))[:, :length]
