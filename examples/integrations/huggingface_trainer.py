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
loss_function = ew.MixedLoss((0.5, ew.EMDLoss(stars)), (0.5, torch.nn.CrossEntropyLoss()))


def compute_loss(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """The Trainer calls this instead of the model's own loss."""
    loss: Tensor = loss_function(outputs["logits"], labels)
    return loss


def main(epochs: int = 4) -> float:
    """Train a tiny BERT from scratch; returns its mean absolute error in stars."""
    config = BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        num_labels=5,
    )
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=32,
            learning_rate=3e-3,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            logging_strategy="no",
            dataloader_pin_memory=False,
            seed=0,
        )
        reviews = Reviews(512)
        trainer = Trainer(
            BertForSequenceClassification(config),
            settings,
            train_dataset=reviews,
            compute_loss_func=compute_loss,
        )
        trainer.train()
        predicted = trainer.predict(reviews)
    p = torch.as_tensor(predicted.predictions).softmax(-1)
    error = stars.distance(ew.decide(p, stars), reviews.labels).mean().item()
    print(f"mean absolute error {error:.2f} stars")
    return error


if __name__ == "__main__":
    main()
