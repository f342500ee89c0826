"""Hugging Face Trainer: pass the loss as ``compute_loss_func``; the model needs no change."""

import tempfile
from typing import Any

import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import earthwork as ew


class Reviews(torch.utils.data.Dataset[dict[str, Any]]):
    """Synthetic reviews: the more often token 7 occurs, the more stars."""

    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.randint(5, (size,), generator=generator)
        self.words = torch.randint(8, 50, (size, 12), generator=generator)
        for words, stars in zip(self.words, self.labels.tolist(), strict=True):
            words[: 2 * stars] = 7

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {
            "input_ids": self.words[i],
            "attention_mask": torch.ones(12, dtype=torch.long),
            "labels": self.labels[i],
        }


stars = ew.Chain(5)
loss_function = ew.MixedLoss(
    (0.5, ew.EMDLoss(stars, reduction="sum")), (0.5, torch.nn.CrossEntropyLoss(reduction="sum"))
)


def compute_loss(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """The sum over a small batch, divided by the labels of all batches whose gradients are accumulated."""
    loss: Tensor = loss_function(outputs["logits"], labels)
    return loss / (labels.numel() if num_items_in_batch is None else num_items_in_batch)


def make_trainer(folder: str, reviews: Reviews, accumulation: int = 1, **settings: Any) -> Trainer:
    """A tiny BERT from scratch, with updates of 32 reviews."""
    torch.manual_seed(0)
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=32 // accumulation,
        gradient_accumulation_steps=accumulation,
        learning_rate=3e-3,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
        dataloader_pin_memory=False,
        seed=0,
        **settings,
    )
    model = BertForSequenceClassification(BertConfig(vocab_size=50, num_labels=5, **size))
    return Trainer(model, arguments, train_dataset=reviews, compute_loss_func=compute_loss)


def main(epochs: int = 4) -> float:
    """Train, and return the mean absolute error in stars."""
    reviews = Reviews(512)
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(folder, reviews, num_train_epochs=epochs)
        trainer.train()
        predicted = trainer.predict(reviews)
    p = torch.as_tensor(predicted.predictions).softmax(-1)
    error = stars.distance(ew.decide(p, stars), reviews.labels).mean().item()
    print(f"mean absolute error {error:.2f} stars")
    return error


if __name__ == "__main__":
    main()
