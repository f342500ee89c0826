"""One-minute clips of chest movement and the spectra of the nasal airflow in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from earthwork.lab.reproduce.breathing_data import Recording


@dataclass(frozen=True)
class Clips:
    """The clips of several recordings.

    Attributes:
        chest: Each of mean 0 and variance 1, shape ``[clips, samples]``.
        spectra: The nasal power in each frequency bin, of sum 1, shape ``[clips, bins]``.
        persons: Whose each clip is.
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
    # A sensor that fell off has no spectrum.
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
