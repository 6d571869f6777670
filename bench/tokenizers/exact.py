# SPDX-License-Identifier: Apache-2.0
"""Ids beside the reference libraries', on texts made for the purpose. Started by bench/tokenizers/exact, which says how.

Texts: files of this machine (headers, documentation, Python, translations in some 150 languages), the corpora that are
named, each read once; and generated ones: scripts of every Unicode block, all code points, what pre-tokenizers stumble
over, mutated and random bytes. The same seed on the same machine makes the same texts; none comes twice.
"""
import argparse, base64, glob, gettext, gzip, json, os, random, struct, subprocess, sys, time

arguments = argparse.ArgumentParser()
arguments.add_argument("--program", required=True)
arguments.add_argument("--megabytes", type=float, default=200)
arguments.add_argument("--seed", type=int, default=1)
arguments.add_argument("--corpus", action="append", default=[])
arguments.add_argument("--only", default="", help="text kinds, comma-separated")
arguments.add_argument("tokenizers", nargs="+", help="a folder or file; PATH:PATTERN for a rank file with a pattern")
options = arguments.parse_args()

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
PATTERNS = {"gpt2": GPT2, "r50k_base": GPT2, "p50k_base": GPT2, "cl100k_base": CL100K, "llama3": CL100K,
            "o200k_base": O200K, "o200k_harmony": O200K}

# ---- texts ----


def machine_files(rng):
    """Paths of texts on this machine, in random order."""
    found = []
    for pattern in ["/usr/include/**/*.h*", "/usr/share/doc/**/*", "/usr/lib/python3*/**/*.py",
                    "/usr/share/perl/**/*.p[lm]", "/usr/share/locale/*/LC_MESSAGES/*.mo"]:
        found += [p for p in glob.glob(pattern, recursive=True) if os.path.isfile(p) and not os.path.islink(p)]
    found.sort()
    rng.shuffle(found)
    return found


def read_file(path):
    try:
        if path.endswith(".mo"):
            with open(path, "rb") as f:
                catalog = gettext.GNUTranslations(f)._catalog
            return "\n".join(v for v in catalog.values() if isinstance(v, str)).encode()
        with open(path, "rb") as f:
            data = f.read(4_000_000)
        return gzip.decompress(data) if path.endswith(".gz") else data
    except Exception:  # a file that cannot be read, or whose reader stumbles: others will do
        return b""


def pieces(data, rng):
    """Cuts a file in texts of very different lengths, between characters or not."""
    at = 0
    while at < len(data):
        size = int(2 ** rng.uniform(4, 17))
        yield data[at:at + size]
        at += size


SOUP = ["'s", "'S", "'ll", "'LL", "'\u017f", "'re", "'RE", "'ve", "'m", "'d", "'t", "''", "'", " ", "  ", "   ", "\t", "\n",
        "\r\n", "\r", "\n\n", " \n", "\u0085", "\u00a0", "\u1680", "\u2003", "\u2028", "\u3000", "\u200b", "\ufeff", "\u180e",
        "\x1c", "\x00", "\x0b", "a", "A", "Hello", "WORLD", "camelCase", "HTTPServer", "x1", "1", "12", "123", "1234",
        "\u0664", "\u2167", "\u00bd", "\u4e00\u4e8c", "!", "...", "/", "//", "/*", "<|", "|>", "_", "__", "\u2581", "\u2581\u2581",
        "e\u0301", "\u0301", "\u0323\u0307", "\u1100\u1161\u11a8", "\ud55c", "\u0e01\u0e33", "\u0915\u094d\u0937", "\u05d0\u05b8",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\u263a\ufe0f", "\u01c5", "\u02b0", "\u24b6",
        "\u2161", "\U0001d400", "\U000105d2\u0307", "\ufb01", "\u212b", "\u1e9b\u0323", "<0x41>", "\ufffd", "\U0010ffff"]


def soup(rng, special):
    parts = SOUP + special
    return "".join(rng.choices(parts, k=rng.randint(1, 400))).encode()


def block(rng, special):
    start = rng.choice([rng.randrange(0, 0x3400, 0x80), rng.randrange(0xA000, 0xD800, 0x80),
                        rng.randrange(0xE000, 0x10000, 0x80), rng.randrange(0x10000, 0x20000, 0x80),
                        rng.randrange(0x3400, 0xA000, 0x80), rng.randrange(0x20000, 0x32000, 0x80), 0xE0000])
    out = []
    for _ in range(rng.randint(5, 1500)):
        kind = rng.random()
        if kind < 0.85: out.append(chr(start + rng.randrange(0x80)))
        elif kind < 0.95: out.append(" ")
        else: out.append(rng.choice(".,;:!?()-'\"\n\t0123456789aZ"))
    return "".join(out).encode()


def everything(rng, special):
    codes = (rng.randrange(0x110000) for _ in range(rng.randint(1, 1000)))
    return "".join(chr(c) for c in codes if not 0xD800 <= c < 0xE000).encode()


def random_bytes(rng, special):
    return rng.randbytes(rng.randint(1, 3000))


def runs(rng, special):
    out = []
    for _ in range(rng.randint(1, 8)):
        out.append(rng.choice(SOUP + ["a", "ab", "=", "-", "\u4e00", "the", " the"]) * int(2 ** rng.uniform(0, 9)))
    return "".join(out).encode()


def mutated(rng, data):
    data = bytearray(data)
    for _ in range(1 + len(data) // 200):
        at = rng.randrange(len(data))
        data[at:at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
    return bytes(data)


def texts(total, special, seed):
    """Texts of `total` bytes in all: 60% files (a tenth of them mutated), the rest generated."""
    rng = random.Random(seed)
    paths = iter(list(options.corpus) + machine_files(rng))
    generators = {"soup": soup, "block": block, "everything": everything, "bytes": random_bytes, "runs": runs}
    only = [k for k in options.only.split(",") if k]
    made = from_files = 0
    waiting = iter(())
    seen = set()
    while made < total:
        text = None
        if from_files < 0.6 * made + 1 and (not only or "files" in only):
            text = next(waiting, None)
            while text is None:
                path = next(paths, None)
                if path is None: break
                waiting = pieces(read_file(path), rng)
                text = next(waiting, None)
            if text is None: from_files = float("inf")
            else:
                from_files += len(text)
                if rng.random() < 0.1: text = mutated(rng, text)
        if text is None:
            text = generators[rng.choice([k for k in generators if not only or k in only])](rng, special)
        mark = hash(text)
        if not text or mark in seen: continue
        seen.add(mark)
        made += len(text)
        yield text


# ---- tokenizers ----


class Ours:
    def __init__(self, path, pattern, special):
        self.pipe = subprocess.Popen([options.program, path, pattern, str(int(special))], stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE)

    def __call__(self, data):
        self.pipe.stdin.write(struct.pack("<I", len(data)) + data)
        self.pipe.stdin.flush()
        head = self.pipe.stdout.read(4)
        if len(head) < 4: raise SystemExit(f"exact: the tokenizer stopped at {data[:200]!r}")
        count, = struct.unpack("<I", head)
        return list(struct.unpack(f"<{count}i", self.pipe.stdout.read(4 * count)))


def hugging_face(path):
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(path)
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def tiktoken_of(ranks, pattern):
    import tiktoken
    encoding = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return encoding.encode_ordinary


def ranks_of_file(path):
    lines = (line.split() for line in open(path, "rb"))
    return {base64.b64decode(l[0]): int(l[1]) for l in lines if l}


def ranks_of_json(document):
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in own]
    to_byte = {chr(b): b for b in own} | {chr(0x100 + i): b for i, b in enumerate(rest)}
    added = {t["content"] for t in document["added_tokens"]}
    return {bytes(to_byte[c] for c in t): i for t, i in document["model"]["vocab"].items() if t not in added}


def pairs_of(path, pattern):
    """[(name of the reference, reference, ours, its special tokens)] of a tokenizer."""
    file = path
    if os.path.isdir(path):
        names = ["tokenizer.json", "tokenizer.model", *sorted(n for n in os.listdir(path) if n.endswith(".tiktoken"))]
        file = next(os.path.join(path, n) for n in names if os.path.exists(os.path.join(path, n)))
    if file.endswith(".json"):
        document = json.load(open(file))
        special = [t["content"] for t in document["added_tokens"]]
        out = [("tokenizers", hugging_face(file), Ours(file, "", True), special)]
        first = document["pre_tokenizer"]
        if document["normalizer"] is None and first["type"] == "ByteLevel" and first.get("use_regex", True):
            out.append(("tiktoken", tiktoken_of(ranks_of_json(document), GPT2), Ours(file, "", False), special))
        return out
    if open(file, "rb").read(1) == b"\n":
        import sentencepiece
        processor = sentencepiece.SentencePieceProcessor(model_file=file)
        return [("sentencepiece", processor.encode, Ours(file, "", False), ["<s>", "</s>", "<unk>"])]
    name = pattern or os.path.basename(file).rsplit(".", 1)[0]
    if name == "tokenizer": name = "llama3"
    reference = tiktoken_of(ranks_of_file(file), PATTERNS[name])
    return [("tiktoken", reference, Ours(file, pattern, False), ["<|endoftext|>", "<|begin_of_text|>"])]


# ---- comparing ----


def smallest(data, differs):
    """A part of `data` that still differs, from which nothing can be left out."""
    size = len(data) // 2
    while size > 0:
        at = 0
        while at < len(data):
            less = data[:at] + data[at + size:]
            if less and differs(less): data = less
            else: at += size
        size //= 2
    return data


def compare(path, pattern):
    differing = 0
    for name, reference, ours, special in pairs_of(path, pattern):
        start, count, size, bad = time.time(), 0, 0, 0
        expected = lambda data: list(reference(data.decode("utf-8", "replace")))
        for data in texts(options.megabytes * 1e6, special, options.seed):
            count, size = count + 1, size + len(data)
            if ours(data) == expected(data): continue
            bad += 1
            if bad > 5: continue
            small = smallest(data, lambda d: ours(d) != expected(d))
            text = small.decode("utf-8", "replace")
            print(f"  {path}: {small!r} = {ascii(text)}\n    ours {ours(small)}\n    {name} {expected(small)}", flush=True)
        print(f"{path}  {name}  {size / 1e6:.1f} MB  {count} texts  {bad} differ  {time.time() - start:.0f} s", flush=True)
        differing += bad
        ours.pipe.stdin.close()
    return differing


total = 0
for each in options.tokenizers:
    where, _, how = each.partition(":")
    total += compare(where, how)
sys.exit(1 if total else 0)
