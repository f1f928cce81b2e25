# /// script
# requires-python = ">=3.11"
# dependencies = ["peft>=0.21", "torch>=2.15", "transformers>=5.24"]
# ///
"""Fine-tune a causal language model with Transformers' Trainer: all of its weights, or LoRA's.

    python finetune.py --text code.txt --output base                                # a small new model
    torchrun --nproc-per-node 4 finetune.py --model base --text mine.txt --rank 8 --output mine

It knows nothing of Kubernetes. ``--model`` is a folder, or a name at the Hugging Face Hub.
"""

import argparse
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    ByT5Tokenizer,
    LlamaConfig,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)


def parse_options(argv=None):
    parser = argparse.ArgumentParser(description="Fine-tune a causal language model.")
    parser.add_argument("--model", help="folder, or name at the Hub; none: a small new model over bytes")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rank", type=int, default=0, help="of LoRA's matrices; 0: train all weights")
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=4, help="sequences of a step, of one process")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--prompt", help="continue this text before the training and after it")
    return parser.parse_args(argv)


def load(name):
    """Load a model and its tokenizer; without a name, make a small Llama whose tokens are bytes."""
    if name:
        return AutoModelForCausalLM.from_pretrained(name), AutoTokenizer.from_pretrained(name)
    tokenizer = ByT5Tokenizer()
    shape = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=len(tokenizer), bos_token_id=None, eos_token_id=1, **shape)
    return AutoModelForCausalLM.from_config(config), tokenizer


def sequences(tokenizer, text, length):
    """Cut a text into sequences of equal length; a tenth of them is kept for the evaluation."""
    tokens = torch.tensor(tokenizer(text, add_special_tokens=False).input_ids)
    rows = [{"input_ids": row, "labels": row} for row in tokens.split(length) if len(row) == length]
    return [row for number, row in enumerate(rows) if number % 10], rows[::10][:64]


def bytes_sent():
    """Count what this machine has sent, but to itself: Linux has a line for each network interface."""
    lines = [line.split(":") for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    return sum(int(counters.split()[8]) for name, counters in lines if name.strip() != "lo")


@torch.inference_mode()
def continuation(model, tokenizer, prompt):
    """Continue a text by 60 tokens, with the same draws before and after the training."""
    torch.manual_seed(0)
    tokens = tokenizer(prompt, add_special_tokens=False, return_tensors="pt").to(model.device)
    (text,) = model.generate(**tokens, max_new_tokens=60, do_sample=True, temperature=0.7)
    return tokenizer.decode(text, skip_special_tokens=True)


class Traffic(TrainerCallback):
    """Print what a step sends over the network: the mean of all but the first, which also shares weights."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 1:
            self.before = bytes_sent()
        elif state.global_step == state.max_steps:
            print(f"bytes sent in a step: {(bytes_sent() - self.before) / (state.max_steps - 1):.0f}")


def main():
    options = parse_options()
    set_seed(0)
    model, tokenizer = load(options.model)
    if options.rank:
        lora = LoraConfig(r=options.rank, target_modules="all-linear", task_type="CAUSAL_LM")
        model = get_peft_model(model, lora)
    weights = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    print(f"weights to train: {weights} of {sum(weight.numel() for weight in model.parameters())}")
    training, evaluation = sequences(tokenizer, options.text.read_text(), options.context)
    settings = TrainingArguments(
        output_dir=options.output,
        max_steps=options.steps,
        learning_rate=options.lr,
        warmup_steps=options.steps // 10,
        lr_scheduler_type="cosine",
        per_device_train_batch_size=options.batch_size,
        per_device_eval_batch_size=16,
        logging_steps=5,
        eval_on_start=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Trainer(model, settings, train_dataset=training, eval_dataset=evaluation, callbacks=[Traffic()])
    if options.prompt:
        print(f"before: {continuation(model, tokenizer, options.prompt)!r}")
    trainer.train()
    trainer.evaluate()
    if options.prompt:
        print(f"after: {continuation(model, tokenizer, options.prompt)!r}")
    trainer.save_model(options.output)
    if trainer.is_world_process_zero():
        tokenizer.save_pretrained(options.output)
        print(f"saved in {options.output}")


if __name__ == "__main__":
    main()
