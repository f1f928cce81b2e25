"""Train a tiny GPT-2 on random words with the Trainer of Hugging Face's transformers; torchrun starts it."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

words = [dict.fromkeys(("input_ids", "labels"), torch.randint(0, 64, (16,))) for _ in range(32)]
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=1))
settings = TrainingArguments("out", num_train_epochs=1, logging_steps=1, use_cpu=True, report_to="none")
trainer = Trainer(model, settings, train_dataset=words)
trainer.train()
trainer.save_model("out/model")
