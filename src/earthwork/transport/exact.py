"""The exact Earth Mover's Distance on any space."""

from __future__ import annotations

from torch import Tensor

from earthwork.spaces import Space
from earthwork.transport.emd import emd


def exact_emd(p: Tensor, q: Tensor, space: Space) -> Tensor:
    r"""The exact Earth Mover's Distance between distributions (not samples, and not logits).

    .. math:: \mathrm{EMD}(p, q) = \min_{T \in U(p, q)} \langle M, T \rangle

    A chain, a ring or a tree has it in closed form. For a :class:`~earthwork.CostMatrix` it is a linear programme,
    solved in float64 by POT's network simplex, the rows in parallel (``pip install 'earthwork[exact]'``). Its duals,
    centred so that they neither make nor destroy dirt, are the gradients for ``p`` and ``q``.

    Args:
        p: Masses ≥ 0 on the space's bins, shape ``[..., num_bins]``.
        q: Masses ≥ 0, of a shape that broadcasts with that of ``p``, each row as heavy as its row of ``p``.
        space: The ground cost: a metric, or any other space.

    Returns:
        The distances, shape ``[...]``, in the type of ``p`` and ``q``.

    Raises:
        ImportError: If the space is a metric and POT is missing.
        TypeError: If ``p`` or ``q`` is not a floating point tensor.
        ValueError: If a shape does not fit, or the masses are negative, not finite or unequal.

    Example:
        >>> import torch, earthwork as ew
        >>> triangle = ew.CostMatrix([[0, 1, 1], [1, 0, 1], [1, 1, 0]])
        >>> ew.exact_emd(torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.0, 0.25, 0.75]), triangle)
        tensor(0.7500)
    """
    return emd(p, q, space, rho=1.0)
