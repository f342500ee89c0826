"""Number tokens: against the published number token loss (package ntloss) and against distances by brute force."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch

import earthwork as ew

VOCABULARY = 40


class Tokenizer:
    """As much of a Hugging Face tokenizer as is needed; " 5" is written with the marker of byte-level tokenizers."""

    all_special_ids = (0,)

    def __init__(self, tokens):
        self.tokens = tokens

    def get_vocab(self):
        return {token: index for index, token in enumerate(self.tokens)}

    def decode(self, indices):
        return "".join(self.tokens[index].replace("Ġ", " ") for index in indices)

    def __len__(self):
        return len(self.tokens)

    def add_tokens(self, tokens):
        return 0


def words(numbers):
    return ["<0>", *numbers, *(f"word{'x' * k}" for k in range(VOCABULARY - 1 - len(numbers)))]


def batch(seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(2, 7, VOCABULARY, generator=generator, dtype=torch.float64)
    labels = torch.randint(VOCABULARY, (2, 7), generator=generator)
    labels[:, :4] = labels[:, :4] % 10 + 1
    labels[0, 0] = -100
    return logits.to(dtype).requires_grad_(), labels


DIGITS = words(list("3901425786"))
NUMBERS = words(["7", "120", "3", "15", "2", "999", "40", "1", "8", "64"])


@pytest.mark.parametrize("reweigh", [False, True])
@pytest.mark.parametrize(("tokens", "digits"), [(DIGITS, True), (NUMBERS, False)])
@pytest.mark.parametrize("seed", range(3))
def test_at_rho_1_it_is_number_token_loss(seed, tokens, digits, reweigh):
    ntloss = pytest.importorskip("ntloss")
    tokenizer = Tokenizer(tokens)
    theirs = ntloss.NTLoss(tokenizer, vocab_size=VOCABULARY, digit_level=digits, reweigh=reweigh)
    outside = 1.01 * theirs.max_dist.item() if reweigh else None
    ours = ew.TokenEMDLoss.from_tokenizer(tokenizer, 1, digits=digits, diameter=None, outside=outside)
    logits, labels = batch(seed)
    expected, value = theirs(logits, labels), ours(logits, labels)
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6)
    gradients = [torch.autograd.grad(loss, logits)[0] for loss in (value, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6 * (outside or 1))


def random_batch(seed, dtype=torch.float64):
    """A vocabulary with numbers at random places, logits, and labels of which some are numbers and some -100."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low, high, *shape):
        return torch.randint(low, high, shape, generator=generator)

    size, count = int(draw(20, 60)), int(draw(2, 15))
    tokens = ["<0>", *(f"word{'x' * k}" for k in range(size - 1))]
    places = sorted((1 + torch.randperm(size - 1, generator=generator)[:count]).tolist())
    for place, number in zip(places, torch.randperm(5000, generator=generator)[:count].tolist(), strict=True):
        tokens[place] = str(number)
    logits = 3 * torch.randn(3, 9, size, generator=generator, dtype=torch.float64)
    labels = torch.where(draw(0, 2, 3, 9) > 0, torch.tensor(places)[draw(0, count, 3, 9)], draw(0, size, 3, 9))
    labels[draw(0, 4, 3, 9) == 0] = -100
    return tokens, torch.tensor(places), logits.to(dtype).requires_grad_(), labels


def squashed(theirs, places):
    """The number token loss with squashed distances: a cost matrix over the number tokens."""
    loss = ew.EMDLoss(ew.CostMatrix(theirs.dist_lookup.double()))

    def value(logits, labels):
        number = torch.isin(labels, places)
        return loss(logits[number][:, places], torch.searchsorted(places, labels[number]))

    return value


@pytest.mark.parametrize("form", ["plain", "reweighted", "squashed"])
@pytest.mark.parametrize("seed", range(8))
def test_number_token_loss_on_random_vocabularies(seed, form):
    ntloss = pytest.importorskip("ntloss")
    tokens, places, logits, labels = random_batch(seed)
    options = {"squash_factor": 4.0} if form == "squashed" else {}
    theirs = ntloss.NTLoss(Tokenizer(tokens), len(tokens), digit_level=False, reweigh=form == "reweighted", **options)
    outside = 1.01 * theirs.max_dist.item() if form == "reweighted" else None
    ours = ew.TokenEMDLoss.from_tokenizer(Tokenizer(tokens), 1, digits=False, diameter=None, outside=outside)
    ours = squashed(theirs, places) if form == "squashed" else ours
    value, expected = ours(logits, labels), theirs(logits, labels)
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6)
    gradients = [torch.autograd.grad(loss, logits)[0] for loss in (value, expected)]
    # Their distances are float32, and the gradients have the size of the distances.
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6 * theirs.max_dist.item())


@pytest.mark.parametrize("rho", [1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("outside", [None, 0.0, 12.0])
def test_distances_by_brute_force(rho, outside):
    tokens, values = [9, 2, 5, 30, 7], [4.0, -1.0, 4.0, 0.5, 10.0]
    loss = ew.TokenEMDLoss(tokens, values, rho, diameter=3.0, outside=outside, reduction="none")
    logits, _ = batch(1)
    labels = torch.tensor([[9, 5, 1, 30, 7, 2, -100], [0, 2, 9, 39, 7, 30, 5]])
    result = loss(logits, labels)
    p_all = logits.softmax(-1)
    p = p_all if outside is not None else logits[..., tokens].softmax(-1)
    for place in [(i, j) for i in range(2) for j in range(7)]:
        label = int(labels[place])
        if label not in tokens:
            assert result[place] == 0
            continue
        bins = sorted(set(values))
        mass = dict.fromkeys(bins, 0.0)
        for k, (token, value) in enumerate(zip(tokens, values, strict=True)):
            mass[value] += p[place][token if outside is not None else k].item()
        true = values[tokens.index(label)]
        rest = 1 - sum(mass.values())
        mass[true] += rest - 1
        total = (outside or 0.0) * abs(rest) ** rho
        running = 0.0
        for low, high in pairwise(bins):
            running += mass[low]
            total += (high - low) * 3 / 11 * abs(running) ** rho
        assert result[place].item() == pytest.approx(total, abs=1e-9)


@pytest.mark.parametrize("outside", [None, 5.0])
@pytest.mark.parametrize("shift", [False, True])
def test_from_hidden_is_same_loss(outside, shift):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, 7, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(VOCABULARY, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(VOCABULARY, generator=generator, dtype=torch.float64, requires_grad=True)
    _, labels = batch(2)
    loss = ew.TokenEMDLoss(range(1, 11), range(10), outside=outside, shift=shift)
    full = loss(torch.nn.functional.linear(hidden, weight, bias), labels)
    short = loss.from_hidden(hidden, weight, labels, bias)
    torch.testing.assert_close(short, full)
    for ours, theirs in zip(*(torch.autograd.grad(x, (hidden, weight, bias)) for x in (short, full)), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("shift", [False, True])
def test_rows_of_hidden_states(shift):
    logits, labels = batch(4)
    loss = ew.TokenEMDLoss(range(1, 11), range(10), shift=shift, reduction="none")
    rows = loss.from_hidden(logits, torch.eye(VOCABULARY, dtype=torch.float64), labels)
    torch.testing.assert_close(rows, loss(logits, labels))


@pytest.fixture(params=[False, True], ids=["small", "large"])
def size(request, monkeypatch):
    """Large logits have gradients of their own."""
    monkeypatch.setattr("earthwork.losses.tokens._LARGE", 0 if request.param else 2**40)


@pytest.mark.usefixtures("size")
@pytest.mark.parametrize("outside", [None, 5.0])
@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_gradients_of_large_logits(outside, shift, dtype):
    logits, labels = batch(5, dtype)
    loss = ew.TokenEMDLoss(range(1, 11), range(10), outside=outside, shift=shift)
    wide = logits.detach().double().requires_grad_()
    identity = torch.eye(VOCABULARY, dtype=torch.float64)
    (expected,) = torch.autograd.grad(loss.from_hidden(wide, identity, labels), wide)
    (slope,) = torch.autograd.grad(loss(logits, labels), logits)
    assert slope.dtype == dtype
    assert slope.is_contiguous()
    limit = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(slope.double(), expected, rtol=limit, atol=limit)


@pytest.mark.parametrize("rho", [1.0, 1.25, 1.5, 2.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_second_derivatives_without_mass_outside(rho, dtype):
    """All mass is on the label as far as the dtype can tell, where ``rest ** (rho - 2)`` is infinite."""
    logits = torch.tensor([[40.0, -40.0, -60.0, -80.0], [200.0, 0.0, -200.0, -200.0]], dtype=dtype, requires_grad=True)
    loss = ew.TokenEMDLoss([0, 1], [0.0, 1.0], rho, outside=1.5)
    (slope,) = torch.autograd.grad(loss(logits, torch.tensor([0, 0])), logits, create_graph=True)
    (second,) = torch.autograd.grad(slope.sum() + slope[:, 0].sum(), logits)
    torch.testing.assert_close(second, torch.zeros_like(second))


@pytest.mark.usefixtures("size")
@pytest.mark.parametrize("rows", [1, 2, 100])
def test_few_rows_at_time(rows, monkeypatch):
    """In parts of 1 or 2 rows, or all 14 at once."""
    monkeypatch.setattr("earthwork.losses.tokens._IN_CACHE", rows * VOCABULARY)
    logits, labels = batch(7)
    labels = labels % 10 + 1
    loss = ew.TokenEMDLoss(range(1, 11), range(10), outside=5.0)
    expected = loss.from_hidden(logits, torch.eye(VOCABULARY, dtype=torch.float64), labels)
    value = loss(logits, labels)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(*(torch.autograd.grad(x, logits)[0] for x in (value, expected)))


def test_copies():
    loss = ew.TokenEMDLoss([1, 2, 3], [0.0, 1.0, 5.0], outside=2.0)
    first, second = copy.deepcopy([loss, loss])
    assert first is second is not loss
    logits, labels = torch.randn(4, 5), torch.tensor([1, 2, 3, 4])
    assert torch.equal(first(logits, labels), loss(logits, labels))
    assert not loss.state_dict()
    assert not list(loss.buffers())


@pytest.mark.usefixtures("size")
@pytest.mark.parametrize("outside", [None, 5.0])
def test_second_and_batched_derivatives(outside):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([1, 5, 2, 3])
    loss = ew.TokenEMDLoss([1, 2, 3], [0.0, 1.0, 5.0], outside=outside, reduction="none")
    assert torch.autograd.gradgradcheck(lambda x: loss(x, labels), logits)
    slopes = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    (batched,) = torch.autograd.grad(loss(logits, labels), logits, slopes, is_grads_batched=True)
    for slope, together in zip(slopes, batched, strict=True):
        torch.testing.assert_close(together, torch.autograd.grad(loss(logits, labels), logits, slope)[0])
    both = [
        torch.func.grad(lambda x: loss(x, labels).sum())(logits),
        torch.autograd.grad(loss(logits, labels).sum(), logits)[0],
    ]
    torch.testing.assert_close(*both)


@pytest.mark.usefixtures("size")
@pytest.mark.parametrize("outside", [None, 5.0])
def test_single_position(outside):
    loss = ew.TokenEMDLoss([1, 2, 3], [0.0, 1.0, 5.0], outside=outside)
    logits = torch.randn(6, dtype=torch.float64, requires_grad=True)
    one = loss(logits, torch.tensor(2))
    torch.testing.assert_close(one, loss(logits[None], torch.tensor([2])))
    assert torch.autograd.grad(one, logits)[0].shape == (6,)


@pytest.mark.usefixtures("size")
def test_autograd_adds_to_gradient_in_place():
    """A view would be copied."""
    logits, labels = batch(6)
    (slope,) = torch.autograd.grad(ew.TokenEMDLoss(range(1, 11), range(10))(logits, labels), logits)
    assert slope._base is None


def test_shift_compares_position_with_next_label():
    logits, labels = batch(3)
    options = {"token_ids": range(1, 11), "values": range(10)}
    shifted = ew.TokenEMDLoss(**options, shift=True)(logits, labels)
    torch.testing.assert_close(shifted, ew.TokenEMDLoss(**options)(logits[:, :-1], labels[:, 1:]))


@pytest.mark.usefixtures("size")
@pytest.mark.parametrize("outside", [None, 3.0])
def test_no_number_in_batch_0_with_gradient_0(outside):
    loss = ew.TokenEMDLoss([1, 2], [0.0, 1.0], outside=outside)
    logits = torch.randn(2, 3, 5, requires_grad=True)
    value = loss(logits, torch.tensor([[0, 3, 4], [-100, 4, 3]]))
    (slope,) = torch.autograd.grad(value, logits)
    assert value == 0
    assert not slope.any()


def test_labels_may_be_of_any_integer_type():
    loss = ew.TokenEMDLoss([1, 2, 156], [0.0, 1.0, 2.0])
    logits, labels = torch.randn(4, 200), torch.tensor([1, 2, 3, 156])
    assert torch.equal(loss(logits, labels.to(torch.uint8)), loss(logits, labels))
    weight, mask = torch.randn(200, 3), torch.tensor([True, True, False, False])
    hidden = torch.randn(4, 3)
    for form in ({}, {"mask": mask}):
        narrow, wide = (loss.from_hidden(hidden, weight, x, **form) for x in (labels.to(torch.uint8), labels))
        assert torch.equal(narrow, wide)


def test_accumulated_gradients_of_one_batch():
    logits, labels = batch(4)
    loss = ew.TokenEMDLoss(range(1, 11), range(10))
    count = ((labels >= 1) & (labels <= 10)).sum()
    whole = torch.autograd.grad(loss(logits, labels), logits)[0]
    parts = sum(torch.autograd.grad(loss(logits[i : i + 1], labels[i : i + 1], count), logits)[0] for i in range(2))
    torch.testing.assert_close(parts, whole)


@pytest.mark.parametrize("reweigh", [False, True])
def test_half_precision_is_no_worse_than_peers(reweigh):
    """The largest error over some batches: in a single one, a rounding error can happen to cancel."""
    ntloss = pytest.importorskip("ntloss")
    worst = [0.0, 0.0]
    for seed in range(10):
        tokens, _, logits, labels = random_batch(seed, torch.bfloat16)
        theirs = ntloss.NTLoss(Tokenizer(tokens), len(tokens), digit_level=False, reweigh=reweigh)
        outside = 1.01 * theirs.max_dist.item() if reweigh else None
        ours = ew.TokenEMDLoss.from_tokenizer(Tokenizer(tokens), 1, digits=False, diameter=None, outside=outside)
        truth = ours(logits.detach().double(), labels)
        errors = [((loss(logits, labels).double() - truth) / truth).abs().item() for loss in (ours, theirs)]
        worst = [max(pair) for pair in zip(worst, errors, strict=True)]
    assert worst[0] <= worst[1]


def test_number_tokens_of_tokenizer():
    tokens = ["<0>", "7", "Ġ7", "12", "Ġ-3", "0.5", "5a", "٣", "1e3", "²", "+4", "a7", "Ġ", "007"]
    found = ew.losses.tokens.number_tokens(Tokenizer(tokens), digits=False)
    assert found == {1: 7, 2: 7, 3: 12, 4: -3, 5: 0.5, 10: 4, 13: 7}
    assert ew.losses.tokens.number_tokens(Tokenizer(tokens)) == {1: 7, 2: 7}


def test_num_items_is_for_means():
    loss = make(reduction="sum")
    with pytest.raises(ValueError, match="num_items: expected only with reduction=\"mean\", got it with 'sum'"):
        loss(torch.zeros(1, 3), torch.tensor([1]), num_items=2)


@pytest.mark.parametrize("num_items", ["2", -1, float("nan")])
def test_num_items_is_number(num_items):
    with pytest.raises(ValueError, match=f"num_items: expected None or a number ≥ 0, got {num_items!r}"):
        make()(torch.zeros(1, 3), torch.tensor([1]), num_items=num_items)


@pytest.mark.parametrize("num_items", [0, torch.tensor(0)])
def test_no_number_in_any_batch(num_items):
    """0, and not 0 / 0, from logits as from hidden states."""
    hidden, weight, labels = torch.randn(2, 3, requires_grad=True), torch.randn(9, 3), torch.tensor([8, -100])
    loss = ew.TokenEMDLoss([1, 2], [0.0, 1.0])
    for value in (
        loss(hidden @ weight.T, labels, num_items),
        loss.from_hidden(hidden, weight, labels, None, num_items),
    ):
        assert value == 0
        assert not torch.autograd.grad(value, hidden)[0].any()


def test_special_tokens_are_no_numbers():
    tokenizer = Tokenizer(["7", "8", "a"])
    tokenizer.all_special_ids = [1]
    assert ew.losses.tokens.number_tokens(tokenizer) == {0: 7}


def test_token_0_may_be_number():
    logits = torch.tensor([[2.0, 0.0, 1.0]])
    loss = ew.TokenEMDLoss([0, 2], [0.0, 1.0], 1, diameter=None)
    torch.testing.assert_close(loss(logits, torch.tensor([0])), logits[0, [0, 2]].softmax(-1)[1])


def test_number_tokens_hugging_face_tokenizers():
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    # Byte-level BPE writes a leading space as Ġ, SentencePiece as ▁.
    pieces = ["a", "7", "Ġ", "Ġ7", "1", "2", "12", "Ġ12", "-", "5", "-5", "b"]
    vocabulary = {token: index for index, token in enumerate(["<s>", *pieces])}
    merges = [("Ġ", "7"), ("1", "2"), ("Ġ", "12"), ("-", "5")]
    byte_level = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    byte_level.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_level.decoder = tokenizers.decoders.ByteLevel()
    marked = tokenizers.Tokenizer(
        tokenizers.models.Unigram([("<s>", 0.0), *((piece.replace("Ġ", "▁"), -1.0) for piece in pieces)], unk_id=0)
    )
    marked.decoder = tokenizers.decoders.Metaspace()
    for backend in (byte_level, marked):
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>")
        found = ew.losses.tokens.number_tokens(tokenizer, digits=False)
        assert found == {2: 7, 4: 7, 5: 1, 6: 2, 7: 12, 8: 12, 10: 5, 11: -5}
        loss = ew.TokenEMDLoss.from_tokenizer(tokenizer)
        assert loss.space.num_bins == 4  # 1, 2, 5 and 7, of which two tokens stand for the last
        assert loss(torch.zeros(1, 3, 13), torch.tensor([[2, 4, 1]])) > 0


def make(**options):
    return ew.TokenEMDLoss(**({"token_ids": [1, 2], "values": [0.0, 1.0]} | options))


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: make(token_ids=[1, 1]), ValueError, "token_ids: expected each token once"),
        (lambda: make(token_ids=[1.0, 2.0]), TypeError, "token_ids: expected integers, got torch.float32"),
        (lambda: make(token_ids=[-1, 2]), ValueError, "token_ids: expected one axis of at least one token ≥ 0"),
        (lambda: make(values=[0.0]), ValueError, r"values: expected 2 numbers, one for each token, got shape \(1,\)"),
        (lambda: make(values=[0.0, float("nan")]), ValueError, "values: expected finite numbers, got nan"),
        (lambda: make(rho=0.5), ValueError, "rho: expected a finite number ≥ 1, got 0.5"),
        (lambda: make(outside=-1), ValueError, "outside: expected None or a finite number ≥ 0, got -1"),
        (lambda: make(reduction="max"), ValueError, "reduction: expected"),
        (lambda: make()(torch.zeros(2, 2), torch.zeros(2).long()), ValueError, "logits: expected a vocab"),
        (lambda: make()(torch.zeros(2, 9), torch.zeros(3).long()), ValueError, r"labels: expected shape \(2,\)"),
        (lambda: make()(torch.zeros(2, 9), torch.zeros(2)), TypeError, "labels: expected tokens"),
        (lambda: make()(torch.zeros(2, 9).long(), torch.zeros(2)), TypeError, "logits: expected a floating"),
        (lambda: make().from_hidden(*[torch.zeros(2, 2).long()] * 3), TypeError, "^hidden: expected a floating"),
        (lambda: make(shift=True)(torch.zeros(9), torch.tensor(1)), ValueError, "labels: expected a sequence to shift"),
        (
            lambda: make().from_hidden(torch.zeros(2, 4), torch.zeros(2, 4), torch.zeros(2).long()),
            ValueError,
            r"weight: expected shape \(vocabulary, 4\), a vocabulary of at least [0-9]+ tokens .* got \(2, 4\)",
        ),
        (
            lambda: make().from_hidden(torch.zeros(2, 4), torch.zeros(20, 4), torch.zeros(2).long(), torch.zeros(21)),
            ValueError,
            r"bias: expected shape \(20,\), as weight, got \(21,\)",
        ),
        (
            lambda: make().from_hidden(torch.zeros(2, 3), torch.zeros(9, 4), torch.zeros(2).long()),
            ValueError,
            r"weight: expected shape \(vocabulary, 3\).*got \(9, 4\)",
        ),
        (lambda: ew.TokenEMDLoss.from_tokenizer(Tokenizer(["a", "b"])), ValueError, "tokenizer: expected single"),
        (lambda: ew.TokenEMDLoss(["a"], [1]), TypeError, r"token_ids and values: expected .* got \['a'\] and \[1\]"),
        (lambda: ew.TokenEMDLoss(None, [1]), TypeError, r"token_ids and values: expected .* got None and \[1\]"),
        (lambda: ew.TokenEMDLoss([1], ["a"]), TypeError, r"token_ids and values: expected .* got \[1\] and \['a'\]"),
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()
