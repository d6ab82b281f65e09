"""The Python API, in vLLM's terms: `LLM` and `SamplingParams`."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from itertools import repeat, zip_longest
from typing import TYPE_CHECKING, Any, Self

from sharegen.engine.cache.prefix_tree import LOOKAHEAD
from sharegen.engine.config import EngineConfig
from sharegen.engine.engine import Engine
from sharegen.engine.model.checkpoint import load_tokenizer
from sharegen.engine.model.load import load_model
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.parallel.driver import Driver
from sharegen.engine.parallel.lead import engine_of
from sharegen.engine.parallel.messages import Ready, Setting
from sharegen.engine.parallel.place import places
from sharegen.engine.random_key import row_key
from sharegen.engine.request import Completion, Request, SamplingParams, TokenLogprobs
from sharegen.errors import ModelError, RequestError, UsageError
from sharegen.results.progress import Progress, longest_of
from sharegen.workload.chat import chat_text
from sharegen.workload.prompt import token_ids

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Prompt = str | Mapping[str, Seq[int]]
"""A text, or {"prompt_token_ids": [...]}."""


@dataclass
class RequestOutput:
    """A prompt and its samples, by sample index.

    prompt: the text, None where token ids were given. prompt_logprobs: an entry a prompt token, the
    first one None, where SamplingParams want them.
    """

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[Completion] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None


class LLM:
    """A model that is ready to sample, until it is closed (or its `with` block ends).

    model: a local folder, a hub id, or a loaded PreTrainedModel.
    tokenizer: a folder, a hub id or a loaded tokenizer; by default the model's own. Prompts of
        token ids need none.
    dtype, device: "auto" is the checkpoint's on CUDA and float32 on a CPU.
    quantization: "fp8" makes the large weights of a folder or hub id FP8 as they are read, on a GPU
        that has it.
    max_sequences: sequences decoded together. kv_cache_memory: bytes. kv_cache_dtype: "fp8" keeps
        in 8 bits the KV that one sample alone reads, "auto" all of it in the model's dtype.
    compile: whether the model's layers are compiled on a GPU.
    lookahead: prompts whose sharing is looked for together; `stream` reads so many ahead.
    workers: engines that share the prompts of a call, each in a process of its own: one a GPU, or
        the cores of a CPU divided among them. The samples are those of one engine.
    ray: address of a Ray cluster that the workers are in ("auto", "HOST:PORT", "ray://HOST:PORT");
        by default as many as it has GPUs, or as fit.
    tensor_parallel_size: GPUs that the model is cut among, each with some of its heads, for a model
        that is too large for one. This process has the first, processes of its own the others.
    seed: of all requests whose SamplingParams bring none. Every call draws anew from the stream
        that it begins, so that a script repeats as a whole.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | PreTrainedModel,
        tokenizer: Any | None = None,
        *,
        dtype: str = "auto",
        quantization: str | None = None,
        device: str = "auto",
        max_sequences: int | None = None,
        kv_cache_memory: int | None = None,
        kv_cache_dtype: str = "auto",
        block_size: int = 16,
        compile: bool = True,
        lookahead: int = LOOKAHEAD,
        seed: int = 0,
        adapter: str | None = None,
        trust_remote_code: bool = False,
        workers: int | None = None,
        ray: str | None = None,
        tensor_parallel_size: int = 1,
    ) -> None:
        source: Any = tokenizer
        if tokenizer is None and isinstance(model, (str, os.PathLike)):
            source = model
        if isinstance(source, (str, os.PathLike)):
            try:
                source = load_tokenizer(source, trust_remote_code=trust_remote_code)
            except ModelError:
                if tokenizer is not None:
                    raise
                source = None  # prompts of token ids need none; others say that it is missing
        self.tokenizer = source
        config = EngineConfig(
            max_sequences=max_sequences,
            kv_cache_memory=kv_cache_memory,
            kv_cache_dtype=kv_cache_dtype,
            block_size=block_size,
            seed=seed,
            compile=compile,
            lookahead=lookahead,
        )
        options: Any = {
            "device": device,
            "dtype": dtype,
            "quantization": quantization,
            "adapter": adapter,
            "trust_remote_code": trust_remote_code,
        }
        self._seed = seed
        self._calls = 0  # of generate, chat and stream that have drawn
        self._engine: Engine | Driver | None
        if ray is None and workers is None:
            workers = 1
        own = ray is None and workers == 1  # an engine in this process
        if own and tensor_parallel_size == 1:
            self._engine = Engine(load_model(model, **options), self.tokenizer, config)
            return
        if not isinstance(model, (str, os.PathLike)):
            who = "ranks" if own else "workers"
            raise UsageError(f"{who} load the model themselves: give its folder or hub id")
        setting = Setting(
            os.fspath(model), self.tokenizer, config, ranks=tensor_parallel_size, **options
        )
        self._engine = engine_of(*places(setting, 1)) if own else _driver(setting, workers, ray)

    @property
    def engine(self) -> Engine | Driver:
        """What decodes. Raises UsageError once the LLM is closed."""
        if self._engine is None:
            raise UsageError("this LLM is closed: make a new one")
        return self._engine

    @property
    def fingerprint(self) -> str:
        """A hash of the model's weights."""
        return self._model.fingerprint

    @property
    def dtype(self) -> str:
        """What the model computes in, such as "bfloat16"."""
        return str(self._model.dtype).removeprefix("torch.")

    @property
    def context_length(self) -> int:
        """The most tokens that prompt and output may have together."""
        return self._model.context_length

    @property
    def _model(self) -> LoadedModel | Ready:
        return self.engine.ready if isinstance(self.engine, Driver) else self.engine.model

    def _own_engine(self, what: str) -> Engine:
        """The engine of this process, which alone knows the samples that run."""
        if isinstance(self.engine, Driver):
            raise UsageError(f"{what} needs an engine in this process: leave out workers")
        return self.engine

    def close(self) -> None:
        """Free the KV cache, and give a model that was passed in its own attention back.

        A stream that still runs ends with UsageError, as every later call does. Closing twice does
        nothing.
        """
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def generate(
        self,
        prompts: Prompt | Seq[Prompt],
        sampling_params: SamplingParams | Seq[SamplingParams] | None = None,
        *,
        use_tqdm: bool | None = None,
    ) -> list[RequestOutput]:
        """Sample every prompt; returns outputs in the order of the prompts.

        sampling_params: one for all prompts, or one a prompt. With a seed they draw the same
        whenever they are called, without one every call draws anew. use_tqdm: show the progress on
        stderr, as `sharegen run` does; by default where stderr is a terminal.

        Raises RequestError for a prompt that cannot run, before anything is sampled.
        """
        single = isinstance(prompts, (str, Mapping))
        items: list[Prompt] = [prompts] if single else list(prompts)  # type: ignore[list-item]
        params = _one_each(sampling_params, len(items))
        outputs = [self._output(prompt) for prompt in items]
        requests = [
            _request(index, output.prompt_token_ids, param)
            for index, (output, param) in enumerate(zip(outputs, params, strict=True))
        ]
        self.engine.check(*requests)
        left = [len(request.samples) for request in requests]
        longest = longest_of(request.params.max_tokens for request in requests)
        with self._progress(use_tqdm, sum(left), len(left), longest) as progress:
            for completion in self.engine.generate(requests, seed=self._next_seed()):
                index = completion.request.key
                outputs[index].outputs.append(completion)
                left[index] -= 1
                if progress is not None:
                    progress.advance(len(completion.token_ids), left[index] == 0)
        for output in outputs:
            output.outputs.sort(key=lambda completion: completion.sample)
            output.prompt_logprobs = output.outputs[0].prompt_logprobs
        return outputs

    def stream(
        self,
        prompts: Prompt | Iterable[Prompt],
        sampling_params: SamplingParams | Iterable[SamplingParams] | None = None,
        *,
        keep: bool = False,
    ) -> Iterator[tuple[int, Completion]]:
        """Sample prompts as they are read; yields (index of the prompt, completion) as they finish.

        sampling_params: one for all prompts, or as many as prompts, read along with them.
        Memory grows with the sequences that run, not the prompts: `lookahead` of these are read
        ahead at a time, for sharing is found among them. keep: whether the KV of finished samples
        stays while there is room, so that `fork` need not compute it again.

        Raises RequestError where a prompt that cannot run is read.
        """
        if keep:
            self._own_engine("keep")
        items: Any = [prompts] if isinstance(prompts, (str, Mapping)) else prompts
        requests = (
            _request(index, self._output(prompt).prompt_token_ids, params, keep)
            for index, (prompt, params) in enumerate(_pairs(items, sampling_params))
        )
        # Closed by hand: closing a generator that only loops over another one, Python 3.12 leaves
        # that one open as long as the first is held, and the engine in the middle of a job.
        completions = self.engine.generate(requests, seed=self._next_seed())
        with closing(completions):
            for completion in completions:
                yield completion.request.key, completion

    def fork(
        self,
        parent: Completion | tuple[int, int],
        sampling_params: SamplingParams | None = None,
        *,
        tokens: int | None = None,
    ) -> int:
        """Continue a sample of the stream that runs into `n` new ones that share all of its text.

            stream = llm.stream(prompts, SamplingParams(n=4, stop=["\\n"]), keep=True)
            for index, completion in stream:
                if promising(completion):
                    llm.fork(completion, SamplingParams(n=2, stop=["\\n"]))

        parent: a completion of the stream, or (index of the prompt, sample) of one that runs. The
        new samples come out of the same stream under the index that is returned, and their text is
        what they add. As for a request whose prompt is all of the parent's text (vLLM's scope),
        max_tokens, min_tokens, presence_penalty and frequency_penalty count new tokens alone;
        repetition_penalty and bad_words see the parent's, too. The rest is as for `Engine.fork`.
        """
        return self._own_engine("fork").fork(parent, sampling_params, tokens=tokens)

    def cancel(self, index: int, samples: Collection[int] | None = None) -> list[int]:
        """End samples of a prompt of the stream that runs; returns which these were.

            for index, completion in llm.stream(prompts, SamplingParams(n=40)):
                if good(completion):
                    llm.cancel(index)

        index: of the prompt, or what `fork` returned. samples: by default all that are left. What
        waits or runs ends, its KV is free in the next step, and nothing more comes of it. A prompt
        that the stream has not read yet is not touched.
        """
        return self.engine.cancel(index, samples)

    def running(self) -> dict[tuple[int, int], list[int]]:
        """The tokens so far of the samples that run, by (index of the prompt, sample)."""
        return self._own_engine("running").running()

    def chat(
        self,
        messages: Seq[Mapping[str, str]] | Seq[Seq[Mapping[str, str]]],
        sampling_params: SamplingParams | Seq[SamplingParams] | None = None,
        *,
        use_tqdm: bool | None = None,
    ) -> list[RequestOutput]:
        """Sample one conversation or a list of them through the tokenizer's chat template.

        sampling_params, use_tqdm: as for `generate`.
        """
        tokenizer = self._need_tokenizer("a conversation")
        if not getattr(tokenizer, "chat_template", None):
            raise RequestError("the tokenizer has no chat template: use generate() with plain text")
        one = bool(messages) and isinstance(messages[0], Mapping)
        conversations = [messages] if one else list(messages)
        prompts: list[Prompt] = []
        for conversation in conversations:
            text = chat_text(tokenizer, conversation)  # type: ignore[arg-type]
            # The template writes its own special tokens, the first one included.
            [ids] = token_ids([text], tokenizer, begin=False)
            prompts.append({"prompt_token_ids": ids})
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def _next_seed(self) -> int:
        """The seed of one call: the LLM's own first, then further ones that hang on it alone."""
        call = self._calls
        self._calls += 1
        return row_key(self._seed, call, 0) if call else self._seed

    def _progress(
        self, wanted: bool | None, samples: int, prompts: int, longest: int | None
    ) -> AbstractContextManager[Progress | None]:
        if not (sys.stderr.isatty() if wanted is None else wanted):
            return nullcontext(None)
        return Progress(self.engine.stats, samples, prompts, None, longest)

    def _output(self, prompt: Prompt) -> RequestOutput:
        if isinstance(prompt, str):
            [ids] = token_ids([prompt], self._need_tokenizer("a text prompt"))
            return RequestOutput(prompt, ids)
        try:
            return RequestOutput(None, [int(token) for token in prompt["prompt_token_ids"]])
        except (KeyError, TypeError, ValueError):
            raise RequestError(
                'a prompt is a text or {"prompt_token_ids": [...]} with whole numbers, '
                f"not {prompt!r:.80}"
            ) from None

    def _need_tokenizer(self, what: str) -> Any:
        if self.tokenizer is None:
            raise RequestError(
                f'{what} needs a tokenizer, and the model has none: pass {{"prompt_token_ids": '
                "[...]} or give LLM(tokenizer=...)"
            )
        return self.tokenizer


def _driver(setting: Setting, workers: int | None, ray: str | None) -> Driver:
    if ray is None:
        assert workers is not None
        return Driver(places(setting, workers))
    from sharegen.engine.parallel.cluster import Cluster, staffed

    return staffed(Cluster(ray), setting, workers)


def _request(
    index: int, prompt_token_ids: list[int], params: SamplingParams, keep: bool = False
) -> Request:
    return Request(index, prompt_token_ids, params, range(params.n), keep)


def _one_each(
    params: SamplingParams | Seq[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise RequestError(f"{count} prompts need {count} SamplingParams or one, not {len(params)}")
    return list(params)


def _pairs(
    prompts: Iterable[Prompt], params: SamplingParams | Iterable[SamplingParams] | None
) -> Iterator[tuple[Prompt, SamplingParams]]:
    if params is None or isinstance(params, SamplingParams):
        yield from zip(prompts, repeat(params or SamplingParams()), strict=False)
        return
    missing = object()
    for index, (prompt, param) in enumerate(zip_longest(prompts, params, fillvalue=missing)):
        if prompt is missing or param is missing:
            short = "prompts" if prompt is missing else "SamplingParams"
            raise RequestError(
                f"the {short} end after {index}: give one SamplingParams a prompt, or one for all"
            )
        yield prompt, param  # type: ignore[misc]
