#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# make-parquet-tests.py FOLDER [--many N]: writes the Parquet files of tests/datapath/test_parquet.c with pyarrow.
#
# NAME.parquet and NAME.jsonl hold the same rows, so that the test compares one reader with the other; other files are
# ones that must be refused. With --many N: N pairs of random shape instead, for ISO_PARQUET_FOLDER=FOLDER test_parquet.
import argparse
import json
import os
import random

import pyarrow as pa
import pyarrow.parquet as pq

WORDS = ["light", "and", "the", "waters", "été", "水", "\N{GRINNING FACE}", "\n", "day", '"', "\\", "made", "\t", "it"]


def texts(count, seed, longest=12, nulls=0.1, repeat=0.3):
    pick = random.Random(seed)
    rows = []
    for _ in range(count):
        if rows and pick.random() < repeat:
            rows.append(pick.choice(rows))
        elif pick.random() < nulls:
            rows.append(None)
        else:
            rows.append(" ".join(pick.choice(WORDS) for _ in range(pick.randrange(longest))))
    return rows


def lines(path, rows, field="text"):
    with open(path, "w", encoding="utf-8") as out:
        for i, row in enumerate(rows):
            value = row
            for part in reversed(field.split(".")):
                value = {part: value}
            out.write(json.dumps({"row": i, **value}, ensure_ascii=i % 2 == 0) + "\n")


def table(rows, type_=pa.string(), nullable=True):
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("text", type_, nullable=nullable), pa.field("other", pa.string())])
    return pa.table({"id": range(len(rows)), "text": pa.array(rows, type_), "other": ["x"] * len(rows)}, schema=schema)


def small(folder):
    rows = texts(150, 1)
    full = [row or "word" for row in rows]

    def pair(name, data, expected, **options):
        pq.write_table(data, f"{folder}/{name}.parquet", **options)
        lines(f"{folder}/{name}.jsonl", expected)

    common = dict(store_schema=False, write_statistics=False)
    pair("plain", table(rows), rows, compression="none", use_dictionary=False, **common)
    pair("snappy", table(rows), rows, compression="snappy", write_page_checksum=True, **common)
    pair("gzip-v2", table(rows), rows, compression="gzip", use_dictionary=False, data_page_version="2.0", **common)
    pair("zstd-v2", table(rows), rows, compression="zstd", data_page_version="2.0", write_page_checksum=True, **common)
    pair("required", table(full, nullable=False), full, compression="snappy", **common)
    pair("groups", table(rows, pa.large_string()), rows, compression="zstd", row_group_size=37, data_page_size=200,
         write_batch_size=10)
    pair("fallback", table(rows), rows, compression="none", dictionary_pagesize_limit=100, data_page_size=300,
         write_batch_size=10, **common)
    pair("nulls", table([None] * 20), [None] * 20, compression="snappy", data_page_version="2.0", **common)
    pair("none", table([]), [], compression="snappy", **common)
    nested = pa.array([None if i % 7 == 0 else {"b": row} for i, row in enumerate(rows)],
                      pa.struct([("b", pa.string()), ("c", pa.list_(pa.string()))]))
    pq.write_table(pa.table({"a": nested, "text": ["x"] * len(rows)}), f"{folder}/nested.parquet", compression="snappy", **common)
    lines(f"{folder}/nested.jsonl", [None if i % 7 == 0 else row for i, row in enumerate(rows)], "a.b")

    refused = table(full[:20])
    pq.write_table(refused, f"{folder}/refused-lz4.parquet", compression="lz4", **common)
    pq.write_table(refused, f"{folder}/refused-brotli.parquet", compression="brotli", **common)
    pq.write_table(refused, f"{folder}/refused-delta.parquet", compression="none", use_dictionary=False,
                   column_encoding={"text": "DELTA_BYTE_ARRAY"}, **common)


def many(folder, count):
    for n in range(count):
        pick = random.Random(n)
        rows = texts(pick.choice([0, 1, 7, 8, 9, 100, 1000, 5000]), 1000 + n, pick.choice([2, 12, 200]), pick.choice([0, 0.1, 0.9]),
                     pick.choice([0, 0.3, 0.95]))
        nullable = pick.random() < 0.7
        if not nullable:
            rows = [row if row is not None else "" for row in rows]
        data = table(rows, pick.choice([pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())]), nullable)
        pq.write_table(data, f"{folder}/{n:05}.parquet", compression=pick.choice(["none", "snappy", "gzip", "zstd"]),
                       use_dictionary=pick.random() < 0.6, data_page_version=pick.choice(["1.0", "2.0"]),
                       version=pick.choice(["1.0", "2.4", "2.6"]), write_page_checksum=pick.random() < 0.5,
                       row_group_size=pick.choice([13, 500, 100000]), data_page_size=pick.choice([64, 4096, 1 << 20]),
                       write_batch_size=pick.choice([1, 10, 1024]), dictionary_pagesize_limit=pick.choice([50, 2000, 1 << 20]),
                       write_statistics=pick.random() < 0.5, store_schema=pick.random() < 0.5)
        back = pq.read_table(f"{folder}/{n:05}.parquet", columns=["text"])["text"].to_pylist()
        lines(f"{folder}/{n:05}.jsonl", [row.decode() if isinstance(row, bytes) else row for row in back])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--many", type=int, default=0)
    arguments = parser.parse_args()
    os.makedirs(arguments.folder, exist_ok=True)
    if arguments.many:
        many(arguments.folder, arguments.many)
    else:
        small(arguments.folder)
