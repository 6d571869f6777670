# SPDX-License-Identifier: Apache-2.0
"""Text to ids: isotach, Hugging Face `tokenizers` and tiktoken over the same documents on one thread, with ratios.

Rules
 1. Vocabularies are loaded and the text is in memory before the clock starts. Every document is encoded once, by a
    contender that has seen none of it: one cold pass.
 2. Documents are those of `isotach bench tokenizer`: 256 KiB at most, cut behind the last line end.
 3. Text is what lies on this machine, each file once (by its bytes), of English each paragraph once too, so no memory
    of words sees a text again. Files that are not UTF-8 are left out.
 4. Added tokens are text for all three. A rank file becomes a tokenizer.json for Hugging Face here: its merges are each
    token's own last one, in the order of ranks, with ignore_merges.
 5. Ids are compared one by one. A difference, or a peer that fails, ends with exit code 1.
 6. Rates are of CPU time as well as of the clock: only the former means something on a machine that is not idle.
"""
import argparse
import array
import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHARED = os.path.join(os.path.dirname(ROOT), "shared", "data")
DOCUMENT_BYTES = 1 << 18
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")


def say(text):
    print(text, file=sys.stderr, flush=True)


# ---- text

def walk(folders, wanted):
    for folder in folders:
        for path, names, files in os.walk(folder):
            names.sort()
            for name in sorted(files):
                full = os.path.join(path, name)
                if wanted(name) and not os.path.islink(full):
                    yield full


def read(path):
    try:
        with open(path, "rb") as file:
            data = file.read(32 << 20)
        if path.endswith(".gz"):
            data = gzip.decompress(data)
        data.decode("utf-8")
        return data
    except (OSError, EOFError, ValueError, gzip.BadGzipFile):
        return b""


class Gatherer:
    def __init__(self, limit):
        self.limit, self.parts, self.bytes, self.seen, self.files = limit, [], 0, set(), 0

    def is_new(self, data):
        digest = hashlib.sha256(data).digest()
        new = digest not in self.seen
        self.seen.add(digest)
        return new

    def add(self, data, paragraphs):
        if self.bytes >= self.limit or not data.strip() or b"\0" in data or not self.is_new(data):
            return
        if paragraphs:
            data = b"\n\n".join(p for p in re.split(rb"\n[ \t]*\n", data) if len(p) < 64 or self.is_new(p)) + b"\n"
        self.files += 1
        self.bytes += len(data)
        self.parts.append(data)

    def text(self):
        """At most `limit` bytes, cut behind a line end."""
        data = b"".join(self.parts)
        return data if len(data) <= self.limit else data[: data.rfind(b"\n", 0, self.limit) + 1]


def english(limit):
    g = Gatherer(limit)
    try:
        done = subprocess.run(["bible", "-l100000", "gen1:1-rev22:21"], stdin=subprocess.DEVNULL, capture_output=True,
                              check=False)
        g.add(done.stdout, True)
    except OSError:
        pass
    plain = re.compile(r"(?i)(readme|news|changelog|copyright|faq|todo|authors|.*\.(txt|md|rst|pod))(\.gz)?$")
    for path in walk(["/usr/share/common-licenses", "/usr/share/doc", "/usr/share/perl"], plain.match):
        g.add(read(path), True)
    for path in walk(["/usr/share/man/man%d" % i for i in range(1, 10)], lambda name: name.endswith(".gz")):
        g.add(read(path), True)
    return g


def code(limit):
    g = Gatherer(limit)
    libraries = sorted("/usr/lib/" + name for name in os.listdir("/usr/lib") if name.startswith("python"))
    for path in walk(libraries, lambda name: name.endswith(".py")):
        g.add(read(path), False)
    for path in walk(["/usr/include"], lambda name: not name.endswith(".gch")):
        g.add(read(path), False)
    return g


def cjk(limit, corpora):
    g = Gatherer(limit)
    for path in walk([corpora], lambda name: name.endswith(".txt")):
        data = read(path)
        if sum(byte >= 0x80 for byte in data[:4096]) > 2048:
            g.add(data, False)
    return g


def documents(data):
    at = 0
    while at < len(data):
        end = len(data)
        if end - at > DOCUMENT_BYTES:
            end = data.rfind(b"\n", at, at + DOCUMENT_BYTES) + 1
            if end == 0:
                end = data.find(b"\n", at + DOCUMENT_BYTES) + 1 or len(data)
        yield data[at:end].decode("utf-8")
        at = end


# ---- vocabularies

def byte_characters():
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    out, more = {byte: chr(byte) for byte in own}, 0x100
    for byte in range(256):
        if byte not in out:
            out[byte], more = chr(more), more + 1
    return out


CHARACTERS = byte_characters()
BYTES = {character: byte for byte, character in CHARACTERS.items()}


def shown(token):
    return "".join(CHARACTERS[byte] for byte in token)


def read_ranks(path):
    import base64
    with open(path, "rb") as file:
        return {base64.b64decode(a): int(b) for a, b in (line.split() for line in file if line.strip())}


def last_merge(ranks, token):
    """The two halves that a token's bytes come to, by merges of lower rank."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        best = min(range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], 1 << 30))
        parts[best: best + 2] = [parts[best] + parts[best + 1]]
    return parts


def rank_json(path):
    ranks = read_ranks(path)
    merges = [last_merge(ranks, token) for token in sorted(ranks, key=ranks.get) if len(token) > 1]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
        "post_processor": None, "decoder": None,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
                  "vocab": {shown(token): rank for token, rank in ranks.items()},
                  "merges": [[shown(a), shown(b)] for a, b in merges]}}


def tokenizer_file(folder):
    path = os.path.join(folder, "tokenizer.json")
    if os.path.exists(path):
        return path
    names = [name for name in os.listdir(folder) if name.endswith(".tiktoken")]
    return os.path.join(folder, names[0]) if len(names) == 1 else None


def huggingface(path):
    from tokenizers import Tokenizer
    if path.endswith(".json"):
        with open(path, encoding="utf-8") as file:
            model = json.load(file)
        model["added_tokens"], model["post_processor"] = [], None
    else:
        model = rank_json(path)
    tokenizer = Tokenizer.from_str(json.dumps(model))
    return lambda text: tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids


def tiktoken_of(name, path):
    """tiktoken with its own pattern; None for vocabularies that it does not have."""
    import tiktoken
    from tiktoken_ext import openai_public
    known = {"gpt2": "r50k_base", "cl100k_base": "cl100k_base", "o200k_base": "o200k_base"}
    if name not in known:
        return None
    if path.endswith(".json"):
        with open(path, encoding="utf-8") as file:
            vocabulary = json.load(file)["model"]["vocab"]
        ranks = {bytes(BYTES[c] for c in token): rank for token, rank in vocabulary.items() if rank < 50256}
    else:
        ranks = read_ranks(path)
    openai_public.load_tiktoken_bpe = lambda *args, **kwargs: ranks
    options = getattr(openai_public, known[name])()
    options.pop("explicit_n_vocab", None)
    options["special_tokens"] = {}
    return tiktoken.Encoding(**options).encode_ordinary


# ---- measuring

def measure_peer(encode, data):
    texts, ids = list(documents(data)), array.array("i")
    wall = cpu = 0.0
    for text in texts:
        wall_began, cpu_began = time.perf_counter(), time.process_time()
        out = encode(text)
        cpu += time.process_time() - cpu_began
        wall += time.perf_counter() - wall_began
        ids.extend(out)
    return {"mb_per_s": len(data) / wall * 1e-6, "mb_per_cpu_s": len(data) / cpu * 1e-6}, ids


def measure_ours(folder, path, scratch, threads):
    out = os.path.join(scratch, "ids")
    command = [os.environ["ISOTACH"], "bench", "tokenizer", "--tokenizer", folder, "--input", path, "--threads",
               str(threads), "--ids", out, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit("run: " + done.stderr.strip())
    ids = array.array("i")
    with open(out, "rb") as file:
        ids.frombytes(file.read())
    return json.loads(done.stdout), ids


def differing(a, b):
    if a == b:
        return 0
    return sum(x != y for x, y in zip(a, b)) + abs(len(a) - len(b))


def main():
    parser = argparse.ArgumentParser(prog="run", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizers", default=os.path.join(SHARED, "tokenizers"), help="folder of tokenizers")
    parser.add_argument("--tokenizer", action="append", help="name in that folder; gpt2 and cl100k_base when not given")
    parser.add_argument("--corpora", default=os.path.join(SHARED, "corpora"), help="folder with Chinese or other CJK text")
    parser.add_argument("--input", action="append", help="a file to encode, instead of english, code and cjk")
    parser.add_argument("--megabytes", type=float, default=50, help="most of each of english, code and cjk (50)")
    parser.add_argument("--peer", action="append", choices=["huggingface", "tiktoken"], help="both when not given")
    parser.add_argument("--threads", type=int, default=1, help="of ours (1)")
    parser.add_argument("--quick", action="store_true", help="2 MB of each")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    args = parser.parse_args()
    limit = int((2 if args.quick else args.megabytes) * 1e6)
    inputs = []
    if args.input:
        for path in args.input:
            with open(path, "rb") as file:
                inputs.append((os.path.basename(path), file.read()))
    else:
        for name, g in (("english", english(limit)), ("code", code(limit)), ("cjk", cjk(limit, args.corpora))):
            say("%s: %d files, %.1f MB" % (name, g.files, len(g.text()) / 1e6))
            if g.bytes:
                inputs.append((name, g.text()))
    rows, failed = [], False
    with tempfile.TemporaryDirectory() as scratch:
        for tokenizer in args.tokenizer or ["gpt2", "cl100k_base"]:
            folder = os.path.join(args.tokenizers, tokenizer)
            path = tokenizer_file(folder) if os.path.isdir(folder) else None
            if not path:
                raise SystemExit("run: %s holds no tokenizer; see --tokenizers" % folder)
            peers = {"huggingface": huggingface(path), "tiktoken": tiktoken_of(tokenizer, path)}
            for name, data in inputs:
                text = os.path.join(scratch, "text")
                with open(text, "wb") as file:
                    file.write(data)
                ours, ids = measure_ours(folder, text, scratch, args.threads)
                row = {"input": name, "tokenizer": tokenizer, "bytes": len(data), "tokens": len(ids), "isotach": ours}
                for peer in args.peer or ["huggingface", "tiktoken"]:
                    if not peers[peer]:
                        continue
                    try:
                        rate, theirs = measure_peer(peers[peer], data)
                    except Exception as error:  # whatever a peer throws is its result
                        row[peer], failed = {"failed": str(error)}, True
                        continue
                    rate["ratio"] = ours["mb_per_s"] / rate["mb_per_s"]
                    rate["ratio_cpu"] = ours["mb_per_cpu_s"] / rate["mb_per_cpu_s"]
                    rate["differing_ids"] = differing(ids, theirs)
                    row[peer] = rate
                    failed |= rate["differing_ids"] > 0
                rows.append(row)
                say("%s, %s: done" % (tokenizer, name))
    if args.json:
        print(json.dumps({"threads": args.threads, "rows": rows, "same_ids": not failed}))
        return failed
    print("MB/s by the clock (by CPU time), documents of 256 KiB, one cold pass; ours on %d thread%s"
          % (args.threads, "s" * (args.threads > 1)))
    print("%-12s %-12s %7s %17s  %s" % ("input", "tokenizer", "MB", "isotach", "peers: MB/s, ratio, differing ids"))
    for row in rows:
        ours = row["isotach"]
        line = "%-12s %-12s %7.1f %8.1f (%6.1f)" % (row["input"][:12], row["tokenizer"], row["bytes"] / 1e6,
                                                   ours["mb_per_s"], ours["mb_per_cpu_s"])
        for peer in ("huggingface", "tiktoken"):
            r = row.get(peer)
            if r and "failed" in r:
                line += "  %s failed: %s" % (peer, r["failed"])
            elif r:
                line += "  %s %.1f (%.1f), %.0fx (%.0fx), %d" % (peer, r["mb_per_s"], r["mb_per_cpu_s"], r["ratio"],
                                                                r["ratio_cpu"], r["differing_ids"])
        print(line)
    return failed


if __name__ == "__main__":
    sys.exit(main())
