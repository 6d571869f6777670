#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make rope.json: what transformers 5.24 gives for rotary frequencies, cosines and sines. usage: make-rope.py rope.json"""
import json
import sys

import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

cases = []
def rope(kind, theta, **more):
    return dict(rope_type=kind, rope_theta=theta, **more)


def numbers(tensor):
    return [float("%.9g" % x) for x in tensor.tolist()]


LLAMA3 = dict(low_freq_factor=1.0, high_freq_factor=4.0)
POSITIONS = [0, 1, 2, 77, 4095]
for name, head_dim, parameters in [
    ("default", 64, rope("default", 10000.0)),
    ("theta 1e6, width 128", 128, rope("default", 1000000.0)),
    ("linear", 16, rope("linear", 10000.0, factor=4.0)),
    ("linear 3", 64, rope("linear", 10000.0, factor=3.0)),
    ("llama3", 128, rope("llama3", 500000.0, factor=8.0, original_max_position_embeddings=8192, **LLAMA3)),
    ("llama3 32", 64, rope("llama3", 500000.0, factor=32.0, original_max_position_embeddings=8192, **LLAMA3)),
    ("llama3 small", 16, rope("llama3", 10000.0, factor=8.0, original_max_position_embeddings=32, **LLAMA3)),
]:
    sizes = dict(vocab_size=32, hidden_size=2 * head_dim, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    config = LlamaConfig(**sizes, head_dim=head_dim, max_position_embeddings=131072, rope_parameters=dict(parameters))
    tables = LlamaRotaryEmbedding(config)
    cos, sin = tables(torch.zeros(1, 1), torch.tensor([POSITIONS]))
    cases.append(dict(name=name, config=dict(model_type="llama", **sizes, rope_parameters=parameters),
                      frequencies=numbers(tables.inv_freq), positions=POSITIONS,
                      cos=[numbers(row[: head_dim // 2]) for row in cos[0]],
                      sin=[numbers(row[: head_dim // 2]) for row in sin[0]]))
with open(sys.argv[1], "w") as file:
    json.dump(cases, file, separators=(",", ":"))
