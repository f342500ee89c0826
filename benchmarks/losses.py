"""The common case: a batch of 512 over 1000 classes, and batches so small that every detour shows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import earthwork as ew
from benchmarks.peers import cumsum_distance, cumsum_loss, dlordinal_loss, matrix_loss, nothing, nothing_by_operator
from benchmarks.timing import Times, forward_backward, in_turns
from earthwork import private_api
from earthwork.kernels.cpu import Layout, loading, run, without_kernels

Cases = dict[str, Callable[[], object]]

ROWS, CLASSES = 512, 1000


def on_the_tree(seconds: float) -> dict[str, Times]:
    """Logits and class indices on ImageNet's hierarchy."""
    tree = ew.trees.imagenet1k(rule="paper")
    logits, labels = torch.randn(ROWS, CLASSES), torch.randint(CLASSES, (ROWS,))
    portable = forward_backward(ew.EMDLoss(tree), logits, labels)

    def without() -> None:
        with without_kernels():
            portable()

    cases: Cases = {
        "F.cross_entropy": forward_backward(functional.cross_entropy, logits, labels),
        "EMDLoss, rho=2": forward_backward(ew.EMDLoss(tree), logits, labels),
        "EMDLoss, rho=1": forward_backward(ew.EMDLoss(tree, rho=1), logits, labels),
        "EMDLoss, rho=1.5": forward_backward(ew.EMDLoss(tree, rho=1.5), logits, labels),
        "EMDLoss, rho=2, portable path": without,
        "EdgeCrossEntropyLoss": forward_backward(ew.EdgeCrossEntropyLoss(tree), logits, labels),
        "HierarchicalCrossEntropyLoss": forward_backward(ew.HierarchicalCrossEntropyLoss(tree), logits, labels),
        "SoftLabelLoss": forward_backward(ew.SoftLabelLoss(tree), logits, labels),
        "dense matrix of bins × edges": forward_backward(matrix_loss(tree), logits, labels),
        "sparse matrix of bins × edges": forward_backward(matrix_loss(tree, sparse=True), logits, labels),
    }
    return in_turns(cases, seconds)


def modes(seconds: float) -> dict[str, Times]:
    """The loss on ImageNet's hierarchy compiled and in inference mode, beside eager mode and ``no_grad``."""
    tree = ew.trees.imagenet1k(rule="paper")
    logits, labels = torch.randn(ROWS, CLASSES), torch.randint(CLASSES, (ROWS,))
    loss, slopes = ew.EMDLoss(tree), torch.randn(ROWS, CLASSES)
    compiled, many = torch.compile(loss, fullgraph=True), (torch.randn(8 * ROWS, CLASSES), labels.repeat(8))
    with torch.inference_mode():
        inference = logits.clone(), labels.clone()

    def without_gradient() -> None:
        with torch.no_grad():
            loss(logits, labels)

    def inference_tensors() -> None:
        with torch.inference_mode():
            loss(*inference)

    cases: Cases = {
        "EMDLoss": forward_backward(loss, logits, labels),
        "EMDLoss, compiled": forward_backward(compiled, logits, labels),
        f"EMDLoss, {8 * ROWS} rows": forward_backward(loss, *many),
        f"EMDLoss, {8 * ROWS} rows, compiled": forward_backward(compiled, *many),
        "EMDLoss, no_grad": without_gradient,
        "EMDLoss, inference tensors": inference_tensors,
        # A compiled backward pass always does this; eager mode leaves it out if the gradient of the loss is 1.
        "a gradient times a number": partial(slopes.mul_, torch.ones(())),
    }
    return in_turns(cases, seconds)


def compiled(seconds: float) -> dict[str, Times]:
    """What people train with, compiled; and what compiling costs a loss that computes nothing."""
    logits, labels = torch.randn(ROWS, CLASSES), torch.randint(CLASSES, (ROWS,))
    loss = ew.EMDLoss(ew.trees.imagenet1k(rule="paper"))
    functions = {
        "MixedLoss with cross entropy": ew.MixedLoss((0.5, loss), (0.5, torch.nn.CrossEntropyLoss())),
        "an operator that computes nothing": nothing_by_operator,
    }
    cases: Cases = {}
    for name, function in functions.items():
        cases[name] = forward_backward(function, logits, labels)
        cases[f"{name}, compiled"] = forward_backward(torch.compile(function, fullgraph=True), logits, labels)
    return in_turns(cases, seconds)


def thread_pools(seconds: float) -> dict[str, Times]:
    """The kernel on torch's threads, and on threads of its own."""
    core, pools = loading.library(), {"torch's threads": private_api.parallel_for(), "its own threads": None}
    layout = Layout([torch.ones(CLASSES - 1)], CLASSES)
    found: dict[str, Times] = {}
    for rows in (64, ROWS, 8 * ROWS):
        logits, labels = torch.randn(rows, CLASSES), torch.randint(CLASSES, (rows,))

        def call(threads: Any, logits: Tensor = logits, labels: Tensor = labels) -> None:
            core.ew_use_parallel_for(threads)
            run.labels(layout, logits, labels, 2.0, True)

        cases: Cases = {f"{name}, {rows} × {CLASSES}": partial(call, threads) for name, threads in pools.items()}
        found |= in_turns(cases, seconds / 3)
    core.ew_use_parallel_for(private_api.parallel_for())
    return found


def on_the_chain(seconds: float) -> dict[str, Times]:
    """Two batches of histograms."""
    p, q = (torch.randn(ROWS, CLASSES).softmax(-1) for _ in range(2))
    chain = ew.Chain(CLASSES)
    cases: Cases = {
        "F.mse_loss": forward_backward(functional.mse_loss, p, q),
        "emd, rho=2": forward_backward(lambda p, q: ew.emd(p, q, chain, rho=2), p, q),
        "emd, rho=1": forward_backward(lambda p, q: ew.emd(p, q, chain, rho=1), p, q),
        "cumsum by hand, rho=2": forward_backward(cumsum_distance, p, q),
    }
    return in_turns(cases, seconds)


def logits_on_the_chain(seconds: float) -> dict[str, Times]:
    """Logits and class indices on a chain."""
    chain = ew.Chain(CLASSES)
    logits, labels = torch.randn(ROWS, CLASSES), torch.randint(CLASSES, (ROWS,))
    cases: Cases = {
        "F.cross_entropy": forward_backward(functional.cross_entropy, logits, labels),
        "EMDLoss, rho=2": forward_backward(ew.EMDLoss(chain), logits, labels),
        "EdgeCrossEntropyLoss": forward_backward(ew.EdgeCrossEntropyLoss(chain), logits, labels),
        "SoftLabelLoss": forward_backward(ew.SoftLabelLoss(chain), logits, labels),
    }
    return in_turns(cases, seconds)


def small(bins: int, seconds: float) -> dict[str, Times]:
    """A batch of 64 over a few bins."""
    chain = ew.Chain(bins)
    p, q = (torch.randn(64, bins).softmax(-1) for _ in range(2))
    logits, labels = torch.randn(64, bins), torch.randint(bins, (64,))
    cases: Cases = {
        "cumsum by hand": forward_backward(cumsum_distance, p, q),
        "emd": forward_backward(partial(ew.emd, space=chain, rho=2), p, q),
        "an autograd.Function that computes nothing": forward_backward(nothing, p, q),
        "softmax and cumsum by hand": forward_backward(cumsum_loss, logits, labels),
        "EMDLoss": forward_backward(ew.EMDLoss(chain), logits, labels),
        "F.cross_entropy": forward_backward(functional.cross_entropy, logits, labels),
    }
    theirs = dlordinal_loss(bins)
    if theirs is not None:
        cases["dlordinal.EMDLoss"] = forward_backward(theirs, logits, labels)
    return in_turns(cases, seconds)


def against_sinkhorn(seconds: float) -> dict[str, Times]:
    """EMD² and 100 Sinkhorn iterations on ImageNet's hierarchy, both with the gradient."""
    tree = ew.trees.imagenet1k(rule="paper")
    p, q = (torch.randn(ROWS, CLASSES).softmax(-1) for _ in range(2))

    def sinkhorn(p: Tensor, q: Tensor) -> Tensor:
        return ew.sinkhorn(p, q, tree, lam=3.0, max_iter=100).value

    cases: Cases = {
        "emd, rho=2": forward_backward(lambda p, q: ew.emd(p, q, tree, rho=2), p, q),
        "sinkhorn, 100 iterations": forward_backward(sinkhorn, p, q),
        "sinkhorn, 100 iterations, as printed in the paper": lambda: ew.sinkhorn(
            p.double(), q.double(), tree, lam=3.0, max_iter=100, method="paper"
        ),
    }
    return in_turns(cases, seconds, at_least=1)
