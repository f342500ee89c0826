"""Lightning: the loss is a submodule, so it moves to the device with the model."""

import lightning as L  # noqa: N812, as its own documentation has it
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import earthwork as ew


class Classifier(L.LightningModule):
    """A small network whose loss knows the space of its classes."""

    def __init__(self, space: ew.Space) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, space.num_bins))
        self.loss_function = ew.MixedLoss((0.5, ew.EMDLoss(space)), (0.5, nn.CrossEntropyLoss()))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """One step; the parts of the mixed loss go to the log."""
        inputs, labels = batch
        loss: torch.Tensor = self.loss_function(self.model(inputs), labels)
        self.log("loss", loss)
        self.log_dict(self.loss_function.parts)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def main(epochs: int = 3) -> dict[str, float]:
    """Train; returns what was logged last."""
    L.seed_everything(0, verbose=False)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.as_tensor(images / 16).float(), torch.as_tensor(labels))
    trainer = L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(ew.Chain(10)), DataLoader(data, batch_size=64, shuffle=True))
    logged = {name: value.item() for name, value in trainer.callback_metrics.items()}
    print(logged)
    return logged


if __name__ == "__main__":
    main()
