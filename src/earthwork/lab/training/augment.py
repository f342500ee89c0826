"""Crops and flips of whole batches, on whatever device they are on."""

from __future__ import annotations

import torch
from torch import Tensor


def crop_and_flip(images: Tensor, shifts: Tensor, flips: Tensor) -> Tensor:
    """Move each image by its shift, mirrored at the border, and flip it where asked.

    This is padding by reflection and cropping at random, in one step: a shift of (2, -1) reads from 2 rows further
    down and 1 column further left.

    Args:
        images: Shape ``[N, H, W, C]``, of any type.
        shifts: Rows and columns to shift by, shape ``[N, 2]``, each less than the height and the width.
        flips: Whether to flip each image left to right, shape ``[N]``.

    Example:
        >>> import torch
        >>> from earthwork.lab.training.augment import crop_and_flip
        >>> image = torch.tensor([[1, 2, 3], [4, 5, 6]])[None, :, :, None]
        >>> crop_and_flip(image, torch.tensor([[0, 1]]), torch.tensor([False]))[0, :, :, 0]
        tensor([[2, 3, 2],
                [5, 6, 5]])
        >>> crop_and_flip(image, torch.tensor([[0, 0]]), torch.tensor([True]))[0, :, :, 0]
        tensor([[3, 2, 1],
                [6, 5, 4]])
    """
    count, height, width = images.shape[:3]
    rows = _reflected(torch.arange(height, device=images.device) + shifts[:, :1], height)
    columns = _reflected(torch.arange(width, device=images.device) + shifts[:, 1:], width)
    columns = torch.where(flips[:, None], columns.flip(1), columns)
    place = torch.arange(count, device=images.device)[:, None, None]
    return images[place, rows[:, :, None], columns[:, None, :]]


def _reflected(index: Tensor, size: int) -> Tensor:
    last = size - 1
    return last - (last - index.abs()).abs()
