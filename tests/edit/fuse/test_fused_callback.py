"""The callback fuses the model of Hugging Face's Trainer and of Lightning's."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from tests.edit.fuse.fuse_models import PeriBlock, RMSNorm, count_kernels, fused_parts, peri, rows
from torch import nn

import normplace as npl

STEPS = 3


class Regression(nn.Module):
    """Called as Hugging Face calls its models; dropout draws random numbers in training."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.block, self.dropout, self.norm = PeriBlock(), nn.Dropout(0.1), RMSNorm()

    def forward(self, x, labels=None):
        out = self.norm(x + self.dropout(self.block(x)))
        return {"loss": (out - labels).square().mean(), "logits": out} if labels is not None else out


def examples() -> list[dict[str, torch.Tensor]]:
    return [{"x": x, "labels": -x} for x in rows(2 * STEPS, 5)]


def train_with_hugging_face(folder, callbacks, bf16=False):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="the Trainer needs accelerate, which is not installed")
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=STEPS, per_device_train_batch_size=2, logging_steps=1, use_cpu=True,
        report_to=[], save_strategy="no", disable_tqdm=True, learning_rate=0.1, bf16=bf16,
    )  # fmt: skip
    trainer = transformers.Trainer(model=Regression(), args=arguments, train_dataset=examples(), callbacks=callbacks)
    trainer.train()
    return trainer.model, [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def train_with_lightning(folder, callbacks):
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network, self.losses = Regression(), []

        def forward(self, x):
            return self.network(x)

        def training_step(self, batch, _):
            loss = self.network(**batch)["loss"]
            self.losses.append(round(float(loss), 5))
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(
        max_steps=STEPS, accelerator="cpu", enable_progress_bar=False, enable_model_summary=False, logger=False,
        default_root_dir=str(folder), callbacks=callbacks,
    )  # fmt: skip
    torch.manual_seed(0)
    module = Module()
    trainer.fit(module, torch.utils.data.DataLoader(examples(), batch_size=2))
    assert module.trainer.global_step == STEPS
    trainer.save_checkpoint(folder / "saved.ckpt")
    return module, module.losses


def train_with_autocast(folder, callbacks):
    return train_with_hugging_face(folder, callbacks, bf16=True)


@pytest.mark.filterwarnings("ignore")  # Lightning's own, of deprecated functions and small data loaders
@pytest.mark.parametrize("train", [train_with_hugging_face, train_with_autocast, train_with_lightning])
def test_a_fused_run_has_the_losses_of_the_plain_run(train, tmp_path, monkeypatch):
    callback = npl.FusedCallback({"x": rows(2, 5)}, only_if_faster=False)
    plain, expected = train(tmp_path / "plain", [])
    counts = count_kernels(monkeypatch)
    model, losses = train(tmp_path / "fused", [callback])
    rounding = 2e-2 if train is train_with_autocast else 1e-3
    assert losses == pytest.approx(expected, rel=rounding) and len(losses) == STEPS
    assert callback.record == npl.changes(model) and sum(part.fused for part in callback.record.fusions) == 4
    assert list(fused_parts(model)) and counts["sum"] >= 3 * STEPS
    assert list(model.state_dict()) == list(plain.state_dict())
    plain.load_state_dict(model.state_dict())
    model, plain, x = npl.unfuse(model).eval(), plain.eval(), rows(2, 5)
    assert torch.equal(model(x), plain(x))  # although Accelerate has wrapped the method that adds


def test_a_model_is_fused_once_and_on_its_own_device(monkeypatch):
    callback = npl.FusedCallback(rows(), only_if_faster=False, reach="stack")
    model = peri()
    callback(model)
    parts = list(fused_parts(model))
    assert callback(model).record is callback.record
    assert all(one is other for one, other in zip(parts, fused_parts(model), strict=True))


def test_on_a_cpu_the_reason_is_recorded():
    callback, model = npl.FusedCallback((rows(),)), peri()
    state = torch.get_rng_state()
    assert "CUDA GPU" in callback(model).record.fusion_note
    assert not list(fused_parts(model)) and torch.equal(torch.get_rng_state(), state)


def test_it_copies_pickles_and_checks_its_options():
    callback = npl.FusedCallback(rows(), reach="stack")
    assert copy.deepcopy(callback).options == pickle.loads(pickle.dumps(callback)).options == {"reach": "stack"}
    with pytest.raises(npl.UsageError, match="inplace"):
        npl.FusedCallback(rows(), inplace=True)


def test_data_parallel_is_refused():
    class Arguments:
        n_gpu, device = 2, torch.device("cpu")

    with pytest.raises(npl.UsageError, match="torchrun"):
        npl.FusedCallback(rows()).on_init_end(Arguments(), None, None, model=peri())
