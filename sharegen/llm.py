"""The Python API, in vLLM's terms: `LLM` and `SamplingParams`."""

from __future__ import annotations

import gc
import inspect
import os
import sys
import warnings
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import fields, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from sharegen.common.at_exit import closed_at_exit
from sharegen.common.kept_bytecode import kept_bytecode
from sharegen.common.parameters.data import CheckpointParameters
from sharegen.common.parameters.machine import LoadParameters, WorkerParameters
from sharegen.common.parameters.parameter import declared, described
from sharegen.common.vllm_names import (
    CALL_NOT_HERE,
    METHODS_NOT_HERE,
    VllmArguments,
    absent,
    own_arguments,
    refusing_call,
)
from sharegen.engine.cache.prefix_tree import LOOKAHEAD
from sharegen.engine.config import EngineConfig
from sharegen.engine.core.random_key import row_key
from sharegen.engine.core.request import (
    BeamSearchParams,
    Completion,
    Params,
    Request,
    SamplingParams,
)
from sharegen.engine.model.checkpoint.folder import check_name
from sharegen.engine.model.compile.rule import (
    COMPILING_SECONDS,
    UNBOUNDED,
    saved_seconds,
    shape_of,
)
from sharegen.engine.model.starting.on_disk import model_on_disk
from sharegen.engine.model.starting.read_ahead import read_ahead
from sharegen.engine.parallel.driver import Driver
from sharegen.engine.parallel.imports import import_engine
from sharegen.engine.parallel.messages import Ready, Setting
from sharegen.errors import (
    CapacityError,
    ModelError,
    NoTokenizerError,
    RequestError,
    UsageError,
)
from sharegen.outputs import BeamSearchOutput, CompletionOutput, RequestOutput
from sharegen.prompts import (
    Prompt,
    Requests,
    as_list,
    checked,
    conversations,
    named,
    needed,
    one_each,
    pairs,
    tokenised,
)
from sharegen.results.screen.bar import is_shown
from sharegen.results.screen.progress import Progress, longest_of
from sharegen.workload.conversation import ChatOptions

if TYPE_CHECKING:
    import torch
    from torch import nn

    from sharegen.engine.engine import Engine
    from sharegen.engine.model.loaded import LoadedModel

DECLARED_IN = (EngineConfig, CheckpointParameters, LoadParameters, WorkerParameters)
"""Where the arguments of LLM are declared."""

_LOADING = declared(CheckpointParameters) | declared(LoadParameters)

_IN_PARAMS = {each.name: f"give SamplingParams({each.name}=...)" for each in fields(SamplingParams)}


@described(*DECLARED_IN)
class LLM:
    """A model that is ready to sample, until it is closed (or its `with` block ends).

        with LLM("./model") as llm:
            [output] = llm.generate("1, 2, 3,", SamplingParams(n=4, max_tokens=8))
            print([sample.text for sample in output.outputs])

    model: A local folder, a GGUF file, a hub id, or a loaded PreTrainedModel or PeftModel; this is
        used where it lies, its weights as they are at each call. Whoever trains it calls it as ever
        meanwhile: it runs its own code, in its own mode, with gradients.
    tokenizer: A folder, a hub id or a loaded tokenizer; by default the model's own. Prompts of
        token ids need none.
    dtype: "float" and "half" are float32 and float16; torch's own dtypes are taken, too. A loaded
        model is computed in its own with "auto", and with copies of its weights in another one.
    quantization: A loaded model is computed with FP8 copies of its large weights.
    revision: Its tokenizer is read at the same.
    kv_cache_memory: By default a share of a CPU's memory, and all of a GPU's that is free or, with
        gpu_memory_utilization, what model, steps and cache may take of it together.
    lookahead: `stream` reads so many prompts ahead.
    compile: None begins uncompiled, and so at once. A call that a GPU finishes sooner with compiled
        layers, their compiling included, makes the engine anew; earlier calls count. So does a
        `stream` of prompts that are no list. A deterministic LLM, one of several processes and one
        of a loaded model compile as they are made.
    seed: None is 0. Every call draws anew from the stream that the seed begins, so that a script
        repeats as a whole.
    workers: Here None is one engine in this process: other processes take long to load a model, and
        an LLM does not know how much it will be asked. With `ray` None is as many as the cluster
        has GPUs, or as fit.
    ray: It is "auto", "HOST:PORT" or "ray://HOST:PORT".
    tensor_parallel_size: This process has the first of them, unless there are workers, and
        processes of their own have the others.
    vllm: max_num_seqs and kv_cache_memory_bytes, which are max_sequences and kv_cache_memory by
        vLLM's names; and these, each with the one value that is how things are here:
        enable_prefix_caching and enable_chunked_prefill (True), disable_log_stats (True),
        skip_tokenizer_init (False), tokenizer_mode, runner, convert and load_format ("auto"), task
        ("generate"), pipeline_parallel_size and data_parallel_size (1), cpu_offload_gb (0).

    Raises TypeError, in one line, for another name: with what to use for a name of vLLM's that
    there is not, with the nearest one for a misspelt one.
    """

    @kept_bytecode()  # while all is imported that loads a model
    def __init__(
        self,
        model: str | os.PathLike[str] | nn.Module,
        tokenizer: Any | None = None,
        *,
        dtype: str | torch.dtype = "auto",
        quantization: Literal["fp8", "fp8-blocks", "mxfp4", "dequantize"] | None = None,
        device: str = "auto",
        revision: str | None = None,
        max_sequences: int | None = None,
        kv_cache_memory: int | None = None,
        gpu_memory_utilization: float | None = None,
        kv_cache_dtype: Literal["auto", "fp8"] = "auto",
        logprobs_mode: Literal["raw_logprobs", "processed_logprobs"] = "raw_logprobs",
        max_model_len: int | None = None,
        swap_space: float = 0.0,
        block_size: int = 16,
        compile: bool | None = None,
        deterministic: bool = False,
        any_tree: bool = False,
        show_model: bool = False,
        enforce_eager: bool = False,
        lookahead: int = LOOKAHEAD,
        seed: int | None = 0,
        adapter: str | None = None,
        trust_remote_code: bool = False,
        workers: int | Literal["auto"] | None = None,
        ray: str | None = None,
        tensor_parallel_size: int = 1,
        **vllm: Unpack[VllmArguments],
    ) -> None:
        said = dict(locals())  # the arguments by name
        said |= own_arguments(vllm, said, inspect.signature(LLM).parameters)
        said |= {"seed": seed or 0, "dtype": str(dtype).removeprefix("torch.")}
        names = declared(EngineConfig).keys() & said.keys()
        config = EngineConfig(**{name: said[name] for name in names})
        named = isinstance(model, (str, os.PathLike))
        is_alone = workers in (None, 1) and ray is None and tensor_parallel_size == 1
        is_open = compile is None and not (deterministic or enforce_eager or show_model)
        if isinstance(model, (str, os.PathLike)) and ray is None:
            check_name(model)
            found = model_on_disk(model, revision)
            if found is not None:
                read_ahead(found)
        import_engine(str(device), compiles=False, shards=True, here=named and is_alone)
        from sharegen.engine.model.checkpoint.tokenizer import load_tokenizer

        try:
            self.tokenizer = load_tokenizer(
                model, tokenizer, trust_remote_code=trust_remote_code, revision=revision
            )
        except ModelError as error:  # prompts of token ids need none; others say that it is missing
            if tokenizer is not None:
                raise
            if not isinstance(error, NoTokenizerError):
                warnings.warn(f"token ids alone can be asked: {error}", stacklevel=2)
            self.tokenizer = None
        options: Any = {name: said[name] for name in _LOADING}
        self._name = os.fspath(model) if named else type(model).__name__  # type: ignore[arg-type]
        self._ranks = tensor_parallel_size
        self._seed = config.seed
        self._request_ids = map(str, count())
        self._calls = 0  # of generate, chat and stream that have drawn
        setting = Setting(model, self.tokenizer, config, ranks=tensor_parallel_size, **options)
        self._compiled: Setting | None = None  # of the engine that takes this one's place
        self._saved = 0.0  # seconds that it would have saved in the calls until now
        if named and is_alone and is_open:
            self._compiled = setting
            setting = replace(setting, config=replace(config, compile=False))
        if ray is None and workers is None:
            workers = 1
        self._engine: Engine | Driver | None = _open(setting, workers, ray)
        if str(self._model.device) == "cpu":
            self._compiled = None

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

    def __repr__(self) -> str:
        """The model, what it computes in and where, and how many engines there are."""
        if self._engine is None:
            return f"LLM({self._name!r}, closed)"
        workers = len(self._engine.pids) if isinstance(self._engine, Driver) else 1
        said = f"{self._name!r}, dtype={self.dtype!r}, device={str(self._model.device)!r}"
        ranks = f", tensor_parallel_size={self._ranks}" if self._ranks > 1 else ""
        return f"LLM({said}, workers={workers}{ranks})"

    def _own_engine(self, what: str) -> Engine:
        """The engine of this process, which alone knows the samples that run."""
        if isinstance(self.engine, Driver):
            raise UsageError(f"{what} needs an engine in this process: leave out workers")
        return self.engine

    if not TYPE_CHECKING:  # for which there is what is written here

        def __getattr__(self, name: str) -> Any:
            raise absent(self, name, METHODS_NOT_HERE)

    def get_tokenizer(self) -> Any:
        """The tokenizer that texts go through. Raises RequestError where there is none."""
        return needed(self.tokenizer, "this call")

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

    @refusing_call("generate()", CALL_NOT_HERE, _IN_PARAMS)
    def generate(
        self,
        prompts: Prompt | Seq[Prompt],
        sampling_params: Params | Seq[Params] | None = None,
        *,
        use_tqdm: bool | None = None,
    ) -> list[RequestOutput]:
        """Sample every prompt; returns outputs in the order of the prompts.

        prompts: one or a list of them: texts, lists of token ids, {"prompt": a text} or
            {"prompt_token_ids": token ids}.
        sampling_params: one for all prompts, or one a prompt. With a seed a prompt draws the same
            whenever it is asked and whatever beside it; equal prompts of a call draw each their
            own. Without one every call draws anew.
        use_tqdm: show the progress on stderr, as `sharegen run` does; by default in a terminal and
            in a notebook, and not where stderr goes to a file.

        Raises RequestError for a prompt that cannot run, by its place among several, before
        anything is sampled; TypeError for an argument of vLLM's that there is not.
        """
        items = as_list(prompts)
        params = one_each(sampling_params, len(items))
        texts, requests, made = [], [], Requests()
        for index, (item, param) in enumerate(zip(items, params, strict=True)):
            with named(index, len(items) > 1):
                text, ids = tokenised(item, self.tokenizer)
            texts.append(text)
            requests.append(made.make(index, ids, param))
        self._refuse(requests)
        self._compile_for(params)
        found: list[list[Completion]] = [[] for _ in requests]
        left = [len(request.samples) for request in requests]
        longest = longest_of(request.params.max_tokens for request in requests)
        with self._progress(use_tqdm, sum(left), len(left), longest) as progress:
            for completion in self.engine.generate(requests, seed=self._next_seed()):
                index = completion.request.key
                found[index].append(completion)
                left[index] -= 1
                if progress is not None:
                    progress.advance(len(completion.token_ids), left[index] == 0)
        return [
            RequestOutput.of(
                next(self._request_ids), text, list(request.prompt_token_ids), drawn, self.tokenizer
            )
            for text, request, drawn in zip(texts, requests, found, strict=True)
        ]

    @refusing_call("beam_search()", CALL_NOT_HERE)
    def beam_search(
        self,
        prompts: Prompt | Seq[Prompt],
        params: BeamSearchParams,
        *,
        use_tqdm: bool | None = None,
    ) -> list[BeamSearchOutput]:
        """Find the likeliest texts of every prompt; returns outputs in the order of the prompts.

            [found] = llm.beam_search(["1, 2, 3,"], BeamSearchParams(beam_width=4, max_tokens=16))
            print(found.sequences[0].text, found.sequences[0].score)

        `generate` takes BeamSearchParams as well, for some prompts or all.
        use_tqdm, errors: as there.
        """
        found = self.generate(prompts, params, use_tqdm=use_tqdm)
        return [BeamSearchOutput.of(output, self.tokenizer) for output in found]

    @refusing_call("stream()", CALL_NOT_HERE, _IN_PARAMS)
    @closed_at_exit
    def stream(
        self,
        prompts: Prompt | Iterable[Prompt],
        sampling_params: Params | Iterable[Params] | None = None,
        *,
        keep: bool = False,
    ) -> Generator[tuple[int, CompletionOutput], None, None]:
        """Sample prompts as they are read; yields (index of the prompt, sample) as they finish.

        prompts: as for `generate`. Memory grows with the sequences that run, not with them:
            `lookahead` of them are read ahead at a time, for sharing is found among these.
        sampling_params: one for all prompts, or as many as prompts, read along with them.
        keep: whether the KV of finished samples stays while there is room, so that `fork` need not
            compute it again.

        Raises RequestError where a prompt that cannot run is read, by its place.
        """
        if keep:
            self._own_engine("keep")
        items: Any = as_list(prompts) if isinstance(prompts, (Mapping, Seq)) else prompts
        is_known = isinstance(items, Seq) and isinstance(sampling_params, Params | None)
        self._compile_for(one_each(sampling_params, len(items)) if is_known else None)  # type: ignore[arg-type]
        # Closed by hand: closing a generator that only loops over another one, Python 3.12 leaves
        # that one open as long as the first is held, and the engine in the middle of a job.
        completions = self.engine.generate(
            self._requests(items, sampling_params, keep), seed=self._next_seed()
        )
        with closing(completions):
            try:
                for completion in completions:
                    key = completion.request.key
                    yield key, CompletionOutput.of(completion, self.tokenizer)
            except (RequestError, CapacityError) as error:
                if error.request_key is None:
                    raise
                raise type(error)(f"prompt {error.request_key}: {error}") from None

    def _requests(
        self,
        prompts: Iterable[Prompt],
        params: Params | Iterable[Params] | None,
        keep: bool,
    ) -> Iterator[Request]:
        """The requests of a stream, as they are read."""
        made = Requests()
        for index, (prompt, param) in enumerate(pairs(prompts, params)):
            with named(index):
                _, ids = tokenised(prompt, self.tokenizer)
            yield made.make(index, ids, param, keep)

    @refusing_call("fork()", CALL_NOT_HERE, _IN_PARAMS)
    def fork(
        self,
        parent: CompletionOutput | tuple[int, int],
        sampling_params: SamplingParams | None = None,
        *,
        tokens: int | None = None,
    ) -> int:
        """Continue a sample of the stream that runs into `n` new ones that share all of its text.

            stream = llm.stream(prompts, SamplingParams(n=4, stop=["\\n"]), keep=True)
            for index, output in stream:
                if promising(output):
                    llm.fork(output, SamplingParams(n=2, stop=["\\n"]))

        The new samples come out of the same stream under the index that is returned, and their text
        is what they add. They depend on what is forked, not on when.

        parent: an output of the stream, or (index of the prompt, sample) of one that runs.
        sampling_params: by default the parent's. As for a request whose prompt is all of the
            parent's text (vLLM's scope), max_tokens, min_tokens, presence_penalty and
            frequency_penalty count new tokens alone; repetition_penalty and bad_words see the
            parent's, too. structured_outputs that are the parent's go on within its text.
        tokens: how many of the parent's tokens are gone on from; by default all.

        Raises UsageError where no stream, or no such sample, runs; RequestError or CapacityError
        for samples that can never run.
        """
        engine = self._own_engine("fork")
        if sampling_params is not None:
            checked(sampling_params)
        of = parent.completion if isinstance(parent, CompletionOutput) else parent
        return engine.fork(of, sampling_params, tokens=tokens)

    def cancel(self, index: int, samples: Collection[int] | None = None) -> list[int]:
        """End samples of a prompt of the stream that runs; returns which these were.

            for index, output in llm.stream(prompts, SamplingParams(n=40)):
                if good(output):
                    llm.cancel(index)

        What waits or runs ends, its KV is free in the next step, and nothing more comes of it. A
        prompt that the stream has not read yet is not touched.

        index: of the prompt, or what `fork` returned.
        samples: their indices; by default all that are left.
        """
        return self.engine.cancel(index, samples)

    def reset_prefix_cache(self) -> None:
        """Forget the prompts of earlier calls: the next call is as a new LLM's first.

        Raises UsageError while a stream runs.
        """
        self.engine.reset_prefix_cache()

    def weights_changed(self) -> None:
        """Say that the weights of the module that was passed in have changed.

            optimizer.step()
            llm.weights_changed()

        What was kept of earlier prompts is forgotten. A change that nobody says is found in the
        next call, and a warning says so. Raises UsageError while a stream runs.
        """
        self._compiled = None  # its weights would be those of the files
        self._own_engine("weights_changed").weights_changed()

    @contextmanager
    def changing_weights(self) -> Iterator[None]:
        """Open a block in which the weights change; `weights_changed` follows at its end.

            with llm.changing_weights():
                optimizer.step()

        Raises UsageError while a stream runs, before anything has changed.
        """
        self.reset_prefix_cache()
        try:
            yield
        finally:
            self.weights_changed()

    def sleep(self, level: Literal[1, 2] = 1) -> None:
        """Give back the memory of weights, KV cache and CUDA graphs, until `wake_up`.

            llm.sleep()
            train_step()
            llm.wake_up()

        level: 1 keeps weights that the LLM loaded in the memory of the host. The weights of a
            module that was passed in stay where they are, with 1 and with vLLM's 2.

        Raises UsageError while a stream runs, and for level 2 of an LLM that loaded its weights.
        """
        engine = self._own_engine("sleep")
        if level not in (1, 2):
            raise UsageError(f"level is {level!r}: it must be 1 or 2")
        if level == 2 and engine.model.lent is None:
            raise UsageError(
                "sleep at level 2 forgets weights, and this LLM has no others: use level 1, or "
                "close, and make a new LLM"
            )
        engine.sleep()

    def wake_up(self, tags: Seq[Literal["weights", "kv_cache"]] | None = None) -> None:
        """Take the memory again that `sleep` gave back.

        Where others have taken memory meanwhile, the KV cache is smaller, and a warning says so.
        Graphs are captured anew as steps need them.
        tags: what wakes up; None is both. Weights wake up before the KV cache.

        Raises CapacityError where too little is left.
        """
        for tag in tags or ():
            if tag not in ("weights", "kv_cache"):
                raise UsageError(f"tags hold {tag!r}: they may be 'weights' and 'kv_cache'")
        wanted = ("weights", "kv_cache") if tags is None else tags
        self._own_engine("wake_up").wake_up("weights" in wanted, "kv_cache" in wanted)

    def running(self) -> dict[tuple[int, int], list[int]]:
        """The tokens so far of the samples that run, by (index of the prompt, sample)."""
        return self._own_engine("running").running()

    @refusing_call("chat()", CALL_NOT_HERE, _IN_PARAMS)
    def chat(
        self,
        messages: Seq[Mapping[str, Any]] | Seq[Seq[Mapping[str, Any]]],
        sampling_params: Params | Seq[Params] | None = None,
        *,
        use_tqdm: bool | None = None,
        tools: Seq[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Sample one conversation or a list of them through the tokenizer's chat template.

        messages: turns with `role` and `content`, or a list of such conversations.
        sampling_params, use_tqdm: as for `generate`.
        tools: schemas of functions that the template is to name.
        add_generation_prompt: whether the answer is a turn of its own. By default it is, and a
            conversation that ends with the assistant is refused.
        continue_final_message: whether the answer goes on within the last turn.
        chat_template_kwargs: variables of the template's own, such as `enable_thinking`.

        A template that writes the date writes today's, as in transformers; its own variable for
        it, often `date_string`, fixes one.
        """
        if add_generation_prompt and continue_final_message:
            raise UsageError("add_generation_prompt and continue_final_message: set one of them")
        options = ChatOptions(
            tools, chat_template_kwargs or {}, add_generation_prompt, continue_final_message
        )
        prompts = conversations(messages, self.tokenizer, options)
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def _next_seed(self) -> int:
        """The seed of one call: the LLM's own first, then further ones derived from it alone."""
        call = self._calls
        self._calls += 1
        return row_key(self._seed, call, 0) if call else self._seed

    def _progress(
        self, wanted: bool | None, samples: int, prompts: int, longest: int | None
    ) -> AbstractContextManager[Progress | None]:
        if wanted not in (True, False, None):
            raise TypeError("use_tqdm is True, False or None: the progress is shown in one way")
        if not (is_shown(sys.stderr) if wanted is None else wanted):
            return nullcontext(None)
        return Progress(self.engine.stats, samples, prompts, None, longest)

    def _compile_for(self, asked: Seq[Params] | None) -> None:
        """Put an engine with compiled layers in the place of an uncompiled one on a GPU, where that
        saves more of the calls until now and this one than compiling takes.

        asked: of each prompt of the call; None where it is not known how many there are.
        """
        setting, engine = self._compiled, self.engine
        if setting is None or isinstance(engine, Driver) or engine.is_busy:
            return  # where it is busy the call itself says so
        shape = shape_of(engine.model.config)
        if asked is not None and shape is not None:
            rows = [_rows(each) for each in asked]
            limits = [each.max_tokens or UNBOUNDED for each in asked]
            tokens = sum(many * limit for many, limit in zip(rows, limits, strict=True))
            self._saved += saved_seconds(tokens, sum(rows), shape, engine.slots)
            if self._saved <= COMPILING_SECONDS:
                return
        engine.check()  # that it does not sleep
        fingerprint = engine.model.fingerprint
        del engine
        self.close()
        gc.collect()  # its weights leave the GPU before they come again
        self._compiled = None
        self._engine = _open(setting, 1)
        if self.fingerprint != fingerprint:
            self.close()
            raise ModelError(
                f"{self._name}: its files changed since this LLM was made: make it anew"
            )

    def _refuse(self, requests: Seq[Request]) -> None:
        """Raise RequestError or CapacityError for the first request that can never run."""
        for index, error in enumerate(self.engine.errors(requests)):
            if error is not None:
                with named(index, len(requests) > 1):
                    raise error


def _open(setting: Setting, workers: int | Literal["auto"] | None, ray: str | None = None) -> Any:
    """The engine of a setting. Who imports this module need not wait for what makes one."""
    from sharegen.engine.parallel.opening import open_engine

    return open_engine(setting, workers, ray=ray)


def _rows(params: Params) -> int:
    """The sequences that one prompt has."""
    return params.n if isinstance(params, SamplingParams) else params.beam_width
