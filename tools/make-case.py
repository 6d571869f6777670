#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make a reference case from a Hugging Face model folder, for `isotach validate MODEL --reference CASE`.

usage: tools/make-case.py MODEL CASE [--batch 3] [--sequence 48] [--steps 10] [--seed 0] [--packed]
                                     [--decay-embeddings] [--like OTHER_CASE]

needs Python 3.10 or later with torch, transformers and safetensors, for example:

    python3 -m venv .venv && .venv/bin/pip install torch==2.13.0 transformers==5.24.0 safetensors
    .venv/bin/python tools/make-case.py MODEL CASE

CASE becomes a folder with `model/` (a copy in float32), `case.safetensors` and `case.json`; docs/models.md says what they
hold. Logits, loss, gradients, ten AdamW steps and a greedy continuation are computed in float32; the same is computed in
float64 and under bfloat16 autocast, so that the case also says how far those types are from exact on this very model.

--like takes tokens, labels and the list of decaying tensors from another case instead of drawing them: a case of the same
model made again must then agree with it.
"""
import argparse
import json
import math
import os
import pathlib
import shutil
import sys

os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file

TRAIN = dict(lr=0.003, min_lr_ratio=0.1, warmup_steps=3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip_norm=1.0)
TRAIN_BATCH, PROMPT, CONTINUATION = 4, 5, 24
IGNORED = -100  # label of a position that is not scored


def fail(text):
    sys.exit(f"make-case: {text}")


# ---- the model ----


def load(folder, dtype):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    return model.eval()  # no dropout, also in the training steps


def copy_model(source, target):
    """The folder in float32: files as they are when all weights are float32 already, else saved anew."""
    files = sorted(source.glob("*.safetensors"))
    if not files or not (source / "config.json").exists():
        fail(f"{source} holds no config.json with *.safetensors")
    target.mkdir(parents=True)
    dtypes = set()
    for file in files:
        with safe_open(file, "pt") as tensors:
            dtypes |= {tensors.get_slice(name).get_dtype() for name in tensors.keys()}
    if dtypes == {"F32"}:
        for file in [source / "config.json", *files, *source.glob("model.safetensors.index.json")]:
            shutil.copyfile(file, target / file.name)
    else:
        load(source, torch.float32).save_pretrained(target)


def packed_mask(segments, dtype):
    """Additive [B, 1, T, T]: a position sees earlier ones of its own segment."""
    length = segments.shape[1]
    seen = segments[:, :, None].eq(segments[:, None, :]) & torch.ones(length, length).tril().bool()
    return torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)[:, None]


def forward(model, batch, dtype):
    """Logits and mean loss over the scored positions (with the router's auxiliary loss where the model has one)."""
    extra = {}
    if "segment_ids" in batch:
        extra = dict(attention_mask=packed_mask(batch["segment_ids"], dtype), position_ids=batch["position_ids"].long())
    out = model(input_ids=batch["input_ids"].long(), use_cache=False, **extra)
    logits = out.logits if dtype == torch.float64 else out.logits.float()
    targets = batch["labels"].long()[:, 1:].flatten()
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), targets, ignore_index=IGNORED)
    if getattr(out, "aux_loss", None) is not None:
        loss = loss + model.config.router_aux_loss_coef * out.aux_loss
    return logits, loss


# ---- inputs ----


def draw_segments(batch, length, generator):
    """Segment numbers and positions that restart: two to four segments in each row."""
    segments = torch.zeros(batch, length, dtype=torch.int32)
    for row in segments:
        count = int(torch.randint(1, 4, (1,), generator=generator))
        starts = torch.randperm(length - 1, generator=generator)[:count] + 1
        row[starts] = 1
    starts = segments.clone()
    segments = segments.cumsum(1).int()
    index = torch.arange(length).expand(batch, length)
    first = torch.where(starts.bool(), index, 0).cummax(1).values
    return segments, (index - first).int(), starts.bool()


def draw_inputs(args, vocabulary):
    generator = torch.Generator().manual_seed(args.seed)

    def ids(*shape):
        return torch.randint(vocabulary, shape, generator=generator).int()

    batch = {"input_ids": ids(args.batch, args.sequence)}
    labels = batch["input_ids"].clone()
    labels[torch.rand(labels.shape, generator=generator) < 0.1] = IGNORED
    if args.packed:
        batch["segment_ids"], batch["position_ids"], starts = draw_segments(args.batch, args.sequence, generator)
        labels[starts] = IGNORED
    batch["labels"] = labels
    return batch, ids(args.steps, TRAIN_BATCH, args.sequence), ids(PROMPT).tolist(), None


def inputs_like(case):
    tensors = load_file(case / "case.safetensors")
    names = ["input_ids", "labels", "segment_ids", "position_ids"]
    report = json.loads((case / "case.json").read_text())
    batch = {name: tensors[name] for name in names if name in tensors}
    return batch, tensors["train.input_ids"], report["greedy"]["prompt"], report["train"]["decay"]


# ---- what is computed ----


def once(folder, batch, dtype, autocast=False):
    """Logits, loss, gradients."""
    model = load(folder, dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits, loss = forward(model, batch, dtype)
    loss.backward()
    return logits.detach(), loss.detach(), {name: p.grad for name, p in model.named_parameters()}


def learning_rate(step, steps):
    warmup, lr, least = TRAIN["warmup_steps"], TRAIN["lr"], TRAIN["min_lr_ratio"]
    if step <= warmup:
        return lr * step / warmup
    return lr * (least + (1 - least) * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2)


def decaying(model, decay_embeddings):
    tables = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    return sorted(n for n, p in model.named_parameters() if p.dim() > 1 and (decay_embeddings or id(p) not in tables))


def trajectory(folder, batches, dtype, decay):
    """Loss before each update, norm before clipping, learning rates, and the last weights."""
    model, steps = load(folder, dtype), len(batches)
    parameters = dict(model.named_parameters())
    groups = [dict(params=[p for n, p in parameters.items() if n in decay], weight_decay=TRAIN["weight_decay"]),
              dict(params=[p for n, p in parameters.items() if n not in decay], weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(TRAIN["beta1"], TRAIN["beta2"]), eps=TRAIN["eps"], foreach=False)
    losses, norms, rates = [], [], []
    for step, ids in enumerate(batches, 1):
        rates.append(learning_rate(step, steps))
        for group in optimizer.param_groups:
            group["lr"] = rates[-1]
        optimizer.zero_grad()
        _, loss = forward(model, {"input_ids": ids, "labels": ids}, dtype)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), TRAIN["clip_norm"]))
        losses.append(loss.detach())
        optimizer.step()
    return torch.stack(losses), torch.stack(norms), rates, {n: p.detach() for n, p in parameters.items()}


@torch.no_grad()
def greedy(folder, prompt):
    model, tokens, smallest = load(folder, torch.float64), list(prompt), math.inf
    for _ in range(CONTINUATION):
        best = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1].topk(2)
        smallest = min(smallest, float(best.values[0] - best.values[1]))
        tokens.append(int(best.indices[0]))
    return dict(prompt=prompt, tokens=tokens[len(prompt):], smallest_gap=smallest)


def error(ours, exact):
    exact = exact.double()
    size = float(exact.norm())
    return float((ours.double() - exact).norm()) / size if size else float(ours.double().norm())


def errors(computed, exact):
    return dict(loss=error(computed[1], exact[1]), logits=error(computed[0], exact[0]),
                gradients={name: error(gradient, exact[2][name]) for name, gradient in computed[2].items()})


# ---- the case ----


def check(args, config):
    if args.packed and getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        fail("--packed is not possible with a sliding window: the mask of this script has none")
    positions = getattr(config, "max_position_embeddings", None)
    if positions and max(args.sequence, PROMPT + CONTINUATION) > positions:
        fail(f"the model has {positions} positions, the case needs {max(args.sequence, PROMPT + CONTINUATION)}")
    if args.steps <= TRAIN["warmup_steps"] or args.sequence < 8 or args.batch < 1:
        fail("a case needs at least 4 steps, 8 tokens a sequence and one sequence")


def make(args):
    source, case = pathlib.Path(args.model), pathlib.Path(args.case)
    if case.exists():
        fail(f"{case} exists; remove it or choose another folder")
    config = transformers.AutoConfig.from_pretrained(source)
    check(args, config)
    drawn = inputs_like(pathlib.Path(args.like)) if args.like else draw_inputs(args, config.vocab_size)
    batch, batches, prompt, decay = drawn
    copy_model(source, case / "model")
    folder = case / "model"
    decay = decay or decaying(load(folder, torch.float32), args.decay_embeddings)

    single, exact = once(folder, batch, torch.float32), once(folder, batch, torch.float64)
    half = once(folder, batch, torch.float32, autocast=True)
    losses, norms, rates, final = trajectory(folder, batches, torch.float32, decay)
    exact_losses, _, _, exact_final = trajectory(folder, batches, torch.float64, decay)

    tensors = {**batch, "logits": single[0], "loss": single[1].reshape(1), "train.input_ids": batches,
               "train.loss": losses, "train.grad_norm": norms}
    tensors.update({f"grad.{name}": gradient for name, gradient in single[2].items()})
    tensors.update({f"final.{name}": weight for name, weight in final.items()})
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, case / "case.safetensors")

    measured = errors(single, exact)
    measured.update(train_loss=max(error(*pair) for pair in zip(losses, exact_losses)),
                    final=max(error(final[name], exact_final[name]) for name in final))
    report = dict(name=case.resolve().name, architecture=config.architectures[0], transformers=transformers.__version__,
                  torch=torch.__version__.split("+")[0],
                  train=dict(steps=len(batches), **TRAIN, decay=decay, lr_by_step=rates), greedy=greedy(folder, prompt),
                  errors_against_float64=dict(float32=measured, bfloat16=errors(half, exact)))
    (case / "case.json").write_text(json.dumps(report, indent=1))
    print(f"{case}: loss {float(single[1]):.6f}, float32 logits {measured['logits']:.2e} from float64, "
          f"bfloat16 {report['errors_against_float64']['bfloat16']['logits']:.2e}; "
          f"smallest gap of the greedy tokens {report['greedy']['smallest_gap']:.3g}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], epilog="See the head of this file.")
    parser.add_argument("model", help="Hugging Face folder: config.json and *.safetensors")
    parser.add_argument("case", help="folder to make")
    parser.add_argument("--batch", type=int, default=3)
    parser.add_argument("--sequence", type=int, default=48)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--packed", action="store_true", help="several segments a row, with a document mask")
    parser.add_argument("--decay-embeddings", action="store_true", help="weight decay on embeddings too")
    parser.add_argument("--like", metavar="CASE", help="take the inputs from this case")
    torch.set_num_threads(1)
    make(parser.parse_args())


if __name__ == "__main__":
    main()
