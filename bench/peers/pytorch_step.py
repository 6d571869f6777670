# SPDX-License-Identifier: Apache-2.0
"""Training steps in PyTorch, as its users write them: transformers' model, bfloat16 autocast, fused attention, fused
AdamW, clipping by norm. Prints one JSON line: seconds of each timed step, and CLOCK_BOOTTIME when step 1 ended.

    pytorch_step.py MODEL BATCH SEQ THREADS WARMUP STEPS eager|compiled wall|cpu

With cpu the seconds are the CPU time of the one thread that does everything.
"""
import json
import os
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is fetched: weights are random
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch
import torch.nn.functional as functional


def make_model(name):
    if name == "gpt2-124m":
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(vocab_size=50257, n_positions=1024, n_embd=768, n_layer=12, n_head=12,
                            activation_function="gelu_new", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                            use_cache=False, attn_implementation="sdpa")
        return GPT2LMHeadModel(config)
    if name == "llama-110m":
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(vocab_size=32000, max_position_embeddings=1024, hidden_size=768, intermediate_size=2048,
                             num_hidden_layers=12, num_attention_heads=12, tie_word_embeddings=True, use_cache=False,
                             attn_implementation="sdpa")
        return LlamaForCausalLM(config)
    sys.exit(f"pytorch_step: no model is called {name}")


def make_step(name, batch, sequence, mode):
    """A function that takes one step on new random tokens and returns its loss, the model, the optimizer."""
    model = make_model(name).train()
    vocabulary = model.config.vocab_size
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, fused=True)

    def loss_of(tokens, labels):
        logits = model(input_ids=tokens).logits
        return functional.cross_entropy(logits.view(-1, vocabulary), labels.view(-1))

    if mode == "compiled":
        loss_of = torch.compile(loss_of)

    def step():
        tokens = torch.randint(0, vocabulary, (batch, sequence))
        labels = torch.randint(0, vocabulary, (batch, sequence))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(tokens, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step, model, optimizer


def main():
    name, mode = sys.argv[1], sys.argv[7]
    clock = time.thread_time if sys.argv[8] == "cpu" else time.monotonic
    batch, sequence, threads, warmup, steps = map(int, sys.argv[2:7])
    torch.manual_seed(1)
    torch.set_num_threads(threads)
    step, _, _ = make_step(name, batch, sequence, mode)
    times, first_step_at, loss = [], 0.0, 0.0
    for i in range(warmup + steps):
        began = clock()
        loss = step()
        ended = clock()
        if i == 0:
            first_step_at = time.clock_gettime(time.CLOCK_BOOTTIME)
        if i >= warmup:
            times.append(ended - began)
    print(json.dumps({"times": times, "first_step_at": first_step_at, "loss": loss, "version": torch.__version__}))


if __name__ == "__main__":
    main()
