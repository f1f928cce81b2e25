"""Train the LoRA adapter of a tiny GPT-2 with PEFT and DDP; torchrun starts it."""

import torch
from peft import LoraConfig, get_peft_model
from torch.nn.parallel import DistributedDataParallel
from transformers import GPT2Config, GPT2LMHeadModel

torch.distributed.init_process_group("gloo")
torch.manual_seed(torch.distributed.get_rank())
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=1))
model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["c_attn"]))
model.print_trainable_parameters()
parallel = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(5):
    words = torch.randint(0, 64, (4, 16))
    loss = parallel(input_ids=words, labels=words).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.4f}")
if torch.distributed.get_rank() == 0:
    model.save_pretrained("adapter")
torch.distributed.destroy_process_group()
