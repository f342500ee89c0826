"""Number tokens of a language model: a batch of 4 × 512 positions over a vocabulary of 32,000."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import earthwork as ew
from benchmarks.processes import run_code
from benchmarks.timing import Times, forward_backward, in_turns

BATCH, TIME, VOCABULARY, FEATURES = 4, 512, 32_000, 512
TOKENS = range(100, 110)
SHARE = 0.2
HEADS = ("head and cross entropy", "the same with from_hidden")

_MEMORY = """
import json, sys
from benchmarks import tokens

case = tokens.cases()[sys.argv[1]]
tokens.warm_up()
with open("/proc/self/clear_refs", "w") as reset:
    reset.write("5")
before = tokens.held("VmRSS")
case()
print(json.dumps({"extra": (tokens.held("VmHWM") - before) / 2**20}))
"""


class _Tokenizer:
    """As much of a tokenizer as ntloss needs: ten digits among other tokens."""

    all_special_ids = ()

    def get_vocab(self) -> dict[str, int]:
        return {self.decode([token]): token for token in range(VOCABULARY)}

    def decode(self, tokens: list[int]) -> str:
        return str(tokens[0] - TOKENS[0]) if tokens[0] in TOKENS else f"word {tokens[0]:x}".replace("0", "o")

    def __len__(self) -> int:
        return VOCABULARY

    def add_tokens(self, tokens: list[str]) -> int:
        return 0


def labels() -> Tensor:
    """Tokens, of which a fifth are digits."""
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(200, VOCABULARY, (BATCH, TIME), generator=generator)
    digits = torch.randint(TOKENS[0], TOKENS[-1] + 1, (BATCH, TIME), generator=generator)
    return torch.where(torch.rand(BATCH, TIME, generator=generator) < SHARE, digits, words)


def cases() -> dict[str, Callable[[], object]]:
    """The losses, forward and backward: through the logits, and on top of an output layer."""
    targets, options = labels(), {"rho": 1.0, "diameter": None}
    logits = torch.randn(BATCH, TIME, VOCABULARY)
    hidden, weight = torch.randn(BATCH, TIME, FEATURES), (torch.randn(VOCABULARY, FEATURES) / 23).requires_grad_()
    plain = ew.TokenEMDLoss(TOKENS, range(10), **options)
    outside = ew.TokenEMDLoss(TOKENS, range(10), **options, outside=9.09)

    def cross_entropy(hidden: Tensor, with_numbers: bool) -> Tensor:
        weight.grad = None
        loss = functional.cross_entropy((hidden @ weight.T).flatten(0, 1), targets.flatten())
        return loss + 0.3 * plain.from_hidden(hidden, weight, targets) if with_numbers else loss

    found = {
        "TokenEMDLoss": forward_backward(plain, logits, targets),
        "TokenEMDLoss, outside": forward_backward(outside, logits, targets),
        HEADS[0]: forward_backward(cross_entropy, hidden, False),
        HEADS[1]: forward_backward(cross_entropy, hidden, True),
    }
    if find_spec("ntloss") is not None:
        from ntloss import NTLoss

        for name, reweigh in (("ntloss", False), ("ntloss, reweigh", True)):
            theirs: Any = NTLoss(_Tokenizer(), vocab_size=VOCABULARY, reweigh=reweigh)
            found[name] = forward_backward(theirs.forward, logits, targets)
    return found


def warm_up() -> None:
    """Load the kernels, whose code takes memory once."""
    logits = torch.randn(BATCH, TIME, 200, requires_grad=True)
    for outside in (None, 9.09):
        loss = ew.TokenEMDLoss(TOKENS, range(10), 1.0, diameter=None, outside=outside)
        loss(logits, labels() % logits.shape[-1]).backward()


def times(seconds: float) -> dict[str, Times]:
    """Seconds of each loss; those on top of an output layer take turns of their own, because they take far longer."""
    found = cases()
    heads = {name: found.pop(name) for name in HEADS}
    return {**in_turns(found, seconds / 2), **in_turns(heads, seconds / 2)}


def memory() -> dict[str, float]:
    """The most memory held beyond the inputs, in MiB, each in a process of its own."""
    names = ["TokenEMDLoss", "TokenEMDLoss, outside", *HEADS]
    names += ["ntloss", "ntloss, reweigh"] if find_spec("ntloss") is not None else []
    return {name: run_code(_MEMORY, name)["extra"] for name in names}


def held(what: str) -> int:
    """Bytes that this process holds, now (``VmRSS``) or at most since the last reset (``VmHWM``)."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(what))
