"""What FP8 does to attention over long contexts, and to the layers of a large model.

    python -m benchmarks.fp8 needles
    SHAREGEN_EMULATE_FP8=1 python -m benchmarks.fp8 layers

A line of JSON for each measurement. No model is read: keys, values and weights are random.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

import torch

from benchmarks.fp8_layers import layer_errors
from benchmarks.fp8_needles import LENGTHS, find_needles
from sharegen.bench.shapes import SHAPES, config_of
from sharegen.engine.model.checkpoint import resolve_device
from sharegen.errors import SharegenError

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def _needles(asked: argparse.Namespace) -> None:
    for length in asked.lengths:
        for found in find_needles(length, asked.device, _DTYPES[asked.dtype], seed=asked.seed):
            print(json.dumps({"bench": "fp8 needles", "dtype": asked.dtype, **asdict(found)}))
        sys.stdout.flush()


def _layers(asked: argparse.Namespace) -> None:
    config = config_of(asked.shape)
    count = asked.layers or config.num_hidden_layers
    for found in layer_errors(config, count, asked.tokens, asked.device, asked.seed):
        line = {"bench": "fp8 layers", "shape": asked.shape, **asdict(found)}
        print(json.dumps(line), flush=True)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fp8", allow_abbrev=False)
    kinds = parser.add_subparsers(required=True, metavar="needles|layers")
    needles = kinds.add_parser("needles", help="decode attention over an FP8 KV cache")
    needles.set_defaults(measure=_needles)
    needles.add_argument("--lengths", type=_count, nargs="+", default=LENGTHS, help="in tokens")
    needles.add_argument("--dtype", choices=_DTYPES, default="bfloat16", help="[bfloat16]")
    layers = kinds.add_parser("layers", help="FP8 weights and KV, layer by layer")
    layers.set_defaults(measure=_layers)
    layers.add_argument("--shape", choices=SHAPES, default="llama3-8b", help="[llama3-8b]")
    layers.add_argument("--layers", type=_count, help="how many [those of the shape]")
    layers.add_argument("--tokens", type=_count, default=128, help="of the sequence [128]")
    for kind in (needles, layers):
        kind.add_argument("--seed", type=int, default=0)
        kind.add_argument("--device", default="auto")
    asked = parser.parse_args(arguments)
    try:
        asked.device = resolve_device(asked.device)
        asked.measure(asked)
    except SharegenError as error:
        parser.exit(error.exit_code, f"sharegen: error: {error}\n")


if __name__ == "__main__":
    main()
