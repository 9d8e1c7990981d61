"""Some steps of transformers' Trainer with a tiny GPT-2."""

import torch


def program(device):
    import transformers

    config = transformers.GPT2Config(
        vocab_size=32, n_embd=16, n_layer=1, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    rows = [{"input_ids": torch.arange(8) + i, "labels": torch.arange(8) + i} for i in range(8)]
    arguments = transformers.TrainingArguments(
        "out", max_steps=3, per_device_train_batch_size=2, report_to=[], use_cpu=device.type == "cpu", save_steps=2,
        logging_steps=1, learning_rate=1e-2, dataloader_pin_memory=False, disable_tqdm=True, seed=0, data_seed=0,
    )  # fmt: skip
    trainer = transformers.Trainer(model, arguments, train_dataset=rows)
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    return losses, trainer.model.transformer.wte.weight.detach().cpu()
