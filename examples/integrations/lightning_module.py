"""Lightning: the loss is a submodule, so it moves to the device with the model."""

import lightning as L  # noqa: N812, the name that its documentation uses
import numpy as np
import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import earthwork as ew


class Classifier(L.LightningModule):
    """A small network whose loss knows how its classes are arranged."""

    def __init__(self, features: int, space: ew.Space) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, space.num_bins))
        self.loss_function = ew.MixedLoss((0.5, ew.EMDLoss(space)), (0.5, nn.CrossEntropyLoss()))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """One step; each part of the mixed loss is logged too."""
        inputs, labels = batch
        loss: torch.Tensor = self.loss_function(self.model(inputs), labels)
        self.log("loss", loss)
        self.log_dict(self.loss_function.parts)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def main(epochs: int = 3) -> dict[str, float]:
    """Train on the progression of diabetes in five grades; returns the last logged values."""
    L.seed_everything(0, verbose=False)
    features, progression = load_diabetes(return_X_y=True)
    grades = np.digitize(progression, np.quantile(progression, [0.2, 0.4, 0.6, 0.8]))
    data = TensorDataset(20 * torch.as_tensor(features).float(), torch.as_tensor(grades))
    trainer = L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(10, ew.Chain(5)), DataLoader(data, batch_size=64, shuffle=True))
    logged = {name: value.item() for name, value in trainer.callback_metrics.items()}
    print(logged)
    return logged


if __name__ == "__main__":
    main()
