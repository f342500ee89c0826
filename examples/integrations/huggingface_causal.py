"""A causal language model with Hugging Face's Trainer: cross entropy, and a distance between number tokens."""

import tempfile
from typing import Any

import torch
from torch import Tensor
from transformers import EvalPrediction, GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import earthwork as ew

PLUS, EQUALS, VOCABULARY = 19, 20, 21  # tokens 0 to 18 are the numbers 0 to 18
numbers = ew.Chain(19)
number_loss = ew.TokenEMDLoss(token_ids=range(19), values=range(19), shift=True)


class Sums(torch.utils.data.Dataset[dict[str, Any]]):
    """Sums such as 3 + 8 = 11, of which only the result is a label."""

    def __init__(self, size: int, seed: int = 0) -> None:
        a, b = torch.randint(10, (2, size), generator=torch.Generator().manual_seed(seed))
        signs = torch.tensor([PLUS, EQUALS]).expand(size, 2)
        self.tokens = torch.stack([a, signs[:, 0], b, signs[:, 1], a + b], -1)
        self.labels = self.tokens.clone()
        self.labels[:, :-1] = -100

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"input_ids": self.tokens[i], "labels": self.labels[i]}


def compute_loss(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """Position t predicts the label of position t + 1; sums are divided by the labels of all accumulated batches."""
    logits = outputs["logits"]
    items = (labels != -100).sum() if num_items_in_batch is None else num_items_in_batch
    flat, next_labels = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    cross_entropy = torch.nn.functional.cross_entropy(flat, next_labels, reduction="sum") / items
    distance: Tensor = number_loss(logits, labels, num_items=items)
    return cross_entropy + 0.3 * distance


def compute_metrics(evaluated: EvalPrediction) -> dict[str, float]:
    """The metrics accept logits, and ignore labels of -100."""
    logits = torch.as_tensor(evaluated.predictions)[:, :-1, : numbers.num_bins]
    labels = torch.as_tensor(evaluated.label_ids)[:, 1:]
    options: dict[str, Any] = {"normalize": "softmax", "class_dim": -1, "decision": "least_risk"}
    return {"mae": ew.metrics.functional.mean_distance(logits, labels, numbers, **options).item()}


def make_trainer(folder: str, accumulation: int = 1, **settings: Any) -> Trainer:
    """A tiny GPT-2 from scratch, with updates of 64 sums."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=5, n_embd=32, n_layer=2, n_head=2, bos_token_id=None, eos_token_id=None
    )
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=64 // accumulation,
        gradient_accumulation_steps=accumulation,
        learning_rate=1e-2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
        dataloader_pin_memory=False,
        seed=0,
        **settings,
    )
    return Trainer(
        GPT2LMHeadModel(config),
        arguments,
        train_dataset=Sums(2048),
        eval_dataset=Sums(256, seed=1),
        compute_loss_func=compute_loss,
        compute_metrics=compute_metrics,
    )


def main(epochs: int = 4) -> float:
    """Train, and return the mean absolute error of the results."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(folder, num_train_epochs=epochs)
        trainer.train()
        error: float = trainer.evaluate()["eval_mae"]
    print(f"mean absolute error {error:.2f}")
    return error


if __name__ == "__main__":
    main()
