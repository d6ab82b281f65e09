"""What structured outputs cost a step: with none, one and all of its rows bound to a schema.

    python -m benchmarks structured --rows 256 --vocab 128256

CPU time of the host, without a model: to schedule, to make the masks (llguidance, on as many cores
as it takes) and to collect, in milliseconds a step; and the sampler on this device with the masks
that came out. A stand-in for the device draws the tokens of a text of the schema.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from sharegen.common.structured import StructuredOutputsParams
from sharegen.engine.cache.block_pool import BlockPool
from sharegen.engine.config import EngineStats
from sharegen.engine.core.batch import TokenMasks
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.execute.drawn import Drawn
from sharegen.engine.execute.padding import graph_rows
from sharegen.engine.grammar.grammars import Grammars
from sharegen.engine.loop.collecting import Collector
from sharegen.engine.loop.masking import masked
from sharegen.engine.sample.sampler import SamplingState, sample
from sharegen.engine.schedule.scheduler import Scheduler
from sharegen.engine.schedule.step import DecodeStep

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "kind": {"enum": ["person", "place", "thing"]},
    },
    "required": ["name", "age", "tags", "kind"],
    "additionalProperties": False,
}
_EOS, _BLOCK_SIZE, _PROMPT_TOKENS = 0, 16, 64


def made_tokenizer(size: int) -> Any:
    """A byte-level BPE of random words; the cost of a mask depends on how many tokens it has."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    rng = random.Random(0)
    words = ["</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {word: i for i, word in enumerate(words)}
    letters = [*"etaoinshrdlucmfwypvbgkjqxzETAOINS0123456789", "Ġ"]
    pieces, merges = list(letters), []
    while len(vocabulary) < size:
        one, other = rng.choice(pieces), rng.choice(pieces)
        if one + other not in vocabulary and len(one + other) <= 9 and not other.startswith("Ġ"):
            vocabulary[one + other] = len(vocabulary)
            merges.append((one, other))
            pieces.append(one + other)
    backend = Tokenizer(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")


@dataclass
class Times:
    """CPU milliseconds a step, by what they went to."""

    schedule: list[float] = field(default_factory=list)
    masks: list[float] = field(default_factory=list)
    collect: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        found = {name: float(np.mean(ms)) for name, ms in vars(self).items()}
        return {f"{name}_ms": round(ms, 3) for name, ms in found.items()}


def text(tokenizer: Any) -> list[int]:
    """A long text of the schema, as the tokens that every bound row is going to draw."""
    rng = random.Random(1)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 9))) for _ in range(400)]
    tags = [" ".join(words[i : i + 4]) for i in range(0, len(words), 4)]
    value = {"name": " ".join(words[:9]), "age": 1936, "tags": tags, "kind": "thing"}
    ids: list[int] = tokenizer.encode(json.dumps(value, separators=(",", ":")))
    return ids


def host(rows: int, bound: int, steps: int, tokenizer: Any) -> tuple[Times, TokenMasks | None]:
    """Full steps of so many rows, of which `bound` have a schema; and the last step's masks."""
    vocab_size, drawn = len(tokenizer), text(tokenizer)
    grammars = Grammars(tokenizer, (_EOS,), vocab_size)
    most = min(steps, len(drawn) - 1)
    params = SamplingParams(max_tokens=most + 8)
    tied = replace(params, structured_outputs=StructuredOutputsParams(json=SCHEMA))
    blocks = (rows + 1) * ((_PROMPT_TOKENS + most) // _BLOCK_SIZE + 2)
    scheduler = Scheduler(
        BlockPool(blocks, _BLOCK_SIZE), max_sequences=rows, context_length=1 << 20,
        chunk_tokens=8192, ahead_tokens=0, padded=graph_rows, scratch_block=blocks,
    )  # fmt: skip
    collector = Collector(scheduler, EngineStats(), None, (_EOS,))
    prompt, kinds = [7] * _PROMPT_TOKENS, [(tied, bound), (params, rows - bound)]
    requests = [Request(i, prompt, p, range(n)) for i, (p, n) in enumerate(kinds) if n]
    for request in requests:
        grammars.check(request)
    scheduler.add_requests(requests)
    times, masks = Times(), None
    while len(times.collect) < most:
        began = time.process_time()
        step = scheduler.schedule(is_idle=True)
        scheduled = time.process_time()
        assert step is not None
        step = masked(step, grammars)
        ready = time.process_time()
        places = len(step.batch.drawings)
        if isinstance(step, DecodeStep):
            places, masks = step.batch.num_rows, step.batch.masks
        token = drawn[len(times.collect) + isinstance(step, DecodeStep)]
        result = Drawn(
            torch.full((places,), token), torch.zeros(places), torch.zeros(places, dtype=torch.bool)
        )
        launched = time.process_time()
        collector.collect(step, result)
        if isinstance(step, DecodeStep):
            times.schedule.append(1e3 * (scheduled - began))
            times.masks.append(1e3 * (ready - scheduled))
            times.collect.append(1e3 * (time.process_time() - launched))
    return times, masks


def sampler(rows: int, vocab_size: int, masks: TokenMasks | None, device: str) -> float:
    """Milliseconds of one step's sampling, masks sent and laid over the logits included."""
    state = SamplingState(rows, vocab_size, device, eos_token_ids=(_EOS,))
    tied = SamplingParams(structured_outputs=StructuredOutputsParams(json=SCHEMA))
    bound = 0 if masks is None else len(masks.places)
    params = [tied] * bound + [SamplingParams()] * (rows - bound)
    state.set_rows(range(rows), params, range(rows), [[]] * rows)
    logits = torch.randn(rows, vocab_size, device=device)
    positions = torch.full((rows,), 3, device=device)

    def step() -> None:
        if masks is not None:
            state.masks.write(masks.places, masks.masks[masks.which])
        sample(logits, state, positions)
        if device == "cuda":
            torch.cuda.synchronize()

    clock = time.perf_counter if device == "cuda" else time.process_time
    step()
    times = []
    for _ in range(5):
        began = clock()
        step()
        times.append(1e3 * (clock() - began))
    return round(statistics.median(times), 3)


def bench_structured(rows: int, vocab: int, steps: int) -> dict[str, Any]:
    """Milliseconds of the parts of a step where none, one and all of its rows are bound.

    Prints a line for each to stderr.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = made_tokenizer(vocab)
    found: dict[str, dict[str, float]] = {}
    for name, bound in (("none", 0), ("one", 1), ("all", rows)):
        times, masks = host(rows, bound, steps, tokenizer)
        drawing = sampler(rows, vocab, masks, device)
        found[name] = times.summary() | {"sampler_ms": drawing}
        line = "".join(f"  {part} {ms:9.3f}" for part, ms in found[name].items())
        print(f"{name:>5s} of {rows} rows bound:{line}", file=sys.stderr)
    asked = {"rows": rows, "vocab": vocab, "steps": steps}
    return {"bench": "structured", "device": device, **asked, "bound": found}
