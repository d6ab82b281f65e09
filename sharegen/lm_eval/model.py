"""The harness's model: what it asks of one, as requests of an engine and lines of a journal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from inspect import signature
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import (
    handle_stop_sequences,
    has_bos_prefix,
    normalize_gen_kwargs,
    postprocess_generated_text,
    resolve_max_length,
)
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from transformers import GenerationConfig

from sharegen.common.log import log
from sharegen.common.panics import panics_as_errors
from sharegen.common.parameters.parameter import declared, described
from sharegen.engine.core.request import SamplingParams
from sharegen.engine.model.checkpoint.source import Source, load_config, locate
from sharegen.errors import RequestError, UsageError
from sharegen.llm import DECLARED_IN, LLM
from sharegen.lm_eval.asking import Ask, score_of, splits_of
from sharegen.lm_eval.generation import sampling_values
from sharegen.results.journal.journal import Journal
from sharegen.results.journal.record import Key, Record
from sharegen.results.screen.progress import Progress, longest_of
from sharegen.workload.problem import random_key
from sharegen.workload.prompt import tokenizer_fingerprint

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

_UNSAID = "cuda:0"
_BLOCK_SIZE = 16

_OWN = {"model", "tokenizer", "vllm", "revision", "adapter", "device", "trust_remote_code", "seed",
        "max_model_len",  # which the harness calls by another name, or this class reads itself
        "block_size", "lookahead"}  # where prompts are split depends on these  # fmt: skip
_OF_LLM = {name: each for name, each in signature(LLM).parameters.items() if name not in _OWN}
_CHANGING = [
    name
    for group in DECLARED_IN
    for name, each in declared(group).items()
    if each.parameter.changes_samples and name in _OF_LLM
]


def _with_arguments_of_llm(made: type[SharegenLM]) -> type[SharegenLM]:
    """A decorator that puts what goes to LLM unseen into the signature, for help and messages."""
    *own, _ = signature(made).parameters.values()
    found = signature(made).replace(parameters=[*own, *_OF_LLM.values()])
    made.__signature__ = found  # type: ignore[attr-defined]
    return made


@register_model("sharegen")
@described(*DECLARED_IN)
@_with_arguments_of_llm
class SharegenLM(TemplateLM):
    """lm-eval's `--model sharegen`; its model_args are this class's arguments.

    pretrained: A local folder or a hub id.
    device: The harness says "cuda:0" where nobody says anything, which is the CPU where there is no
        GPU.
    peft: A LoRA adapter, which is merged at load.
    max_length: The most tokens of context and output, by default what the harness's `hf` model
        reads in the config.
    max_gen_toks: The most tokens of an output for which the task sets none.
    add_bos_token: As for the harness's other models, like the next four.
    ignore_generation_config: Whether texts are drawn as the task says alone, whatever the model's
        generation_config.json has beside it.
    journal: The file that results go to, by default one in runs/ for each model.
    workers: Here None is one engine in this process, as for LLM.
    batch_size: The harness always gives it and max_batch_size; everything is one batch here.

    Raises a SharegenError, one line each, for what a user can cause.
    """

    def __init__(
        self,
        pretrained: str,
        *,
        tokenizer: str | None = None,
        revision: str | None = None,
        peft: str | None = None,
        device: str | None = None,
        trust_remote_code: bool = False,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        add_bos_token: bool | None = None,
        prefix_token_id: int | None = None,
        enable_thinking: bool | None = None,
        chat_template_args: dict[str, Any] | None = None,
        think_end_token: str | int | None = None,
        ignore_generation_config: bool = False,
        journal: str | None = None,
        seed: int = 0,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        **of_llm: Any,
    ) -> None:
        super().__init__()
        others = of_llm.keys() - _OF_LLM.keys()
        if others:
            raise UsageError(
                f"model_args: {', '.join(sorted(others))}: not known here: there are "
                f"{', '.join(signature(type(self)).parameters)}"
            )
        compiles = True if of_llm.get("compile") is None else of_llm["compile"]
        self._llm = LLM(  # compiled at once: its engine is asked, of which LLM counts no tokens
            str(pretrained),
            tokenizer,
            revision=revision,
            adapter=peft,
            device="auto" if device is None or device == _UNSAID else device,
            trust_remote_code=bool(trust_remote_code),
            block_size=_BLOCK_SIZE,
            seed=seed,
            **of_llm | {"compile": compiles},
        )
        self.tokenizer = self._llm.tokenizer
        if self.tokenizer is None:
            raise UsageError(f"{pretrained}: has no tokenizer: give tokenizer=... in model_args")
        source = locate(str(pretrained), bool(trust_remote_code), revision)
        config = load_config(source)
        context = self._llm.context_length
        if max_length is not None and not 2 <= int(max_length) <= context:
            raise UsageError(f"max_length is {max_length}: it must be from 2 to {context}")
        wanted = int(max_length or resolve_max_length(config, self.tokenizer))
        if wanted > context:
            log(f"the context holds {context:,} tokens, where `hf` takes it for {wanted:,}")
        self.max_length = min(wanted, context)
        self._vocab_size = config.get_text_config().vocab_size
        own = _generation_config(source, config)
        self._ends = _listed(own.pop("eos_token_id", None))
        self._generation = {} if ignore_generation_config else own
        self._max_gen_toks = int(max_gen_toks)
        self._add_bos = add_bos_token
        self._prefix = prefix_token_id
        self._thinking = enable_thinking
        self._template_args = dict(chat_template_args or {})
        self._think_end = think_end_token
        self._seed = seed
        self._identity = {
            "program": "lm-eval by tokens",
            "quantization": None,
            **{name: of_llm[name] for name in _CHANGING if of_llm.get(name, "auto") != "auto"},
            "dtype": self._llm.dtype,
            "sampling": {"seed": seed},
        }
        self._fingerprints = {
            "model": self._llm.fingerprint, "tokenizer": tokenizer_fingerprint(self.tokenizer)
        }  # fmt: skip
        self._journal = Path(journal) if journal is not None else self._default_journal()

    # -- what the harness asks of a model ---------------------------------------------------------

    @property
    def eot_token_id(self) -> int:
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        """What a text without context is scored after."""
        if self._prefix is not None:
            return self._prefix
        bos = self.tokenizer.bos_token_id
        return self.eot_token_id if bos is None else bos

    @property
    def max_gen_toks(self) -> int:
        return self._max_gen_toks

    @property
    def tokenizer_name(self) -> str:
        return self.tokenizer.name_or_path.replace("/", "__")

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """Return token ids as in the harness's `hf`: with BOS if the tokenizer adds one, never
        two.
        """
        own = self._add_bos if add_special_tokens is None else add_special_tokens
        begun = has_bos_prefix(string, self.tokenizer.decode(self.prefix_token_id))
        if add_special_tokens is None and begun:
            own = False
        options = {} if own is None else {"add_special_tokens": own}
        with panics_as_errors("the tokenizer"):
            return self.tokenizer.encode(string, verbose=False, **options)

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        options = dict(self._template_args)
        if self._thinking is not None:
            options["enable_thinking"] = self._thinking
        return self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
            **options,
        )

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Texts, in the order of the requests; the same request again is another sample of it."""
        eos = self.tokenizer.decode(self.eot_token_id)
        asks, stops = [], []
        for context, options in (request.args for request in requests):
            ask, until = self._continuation(context, options, eos)
            asks.append(ask)
            stops.append(until)
        texts = []
        for request, until, record in zip(requests, stops, self._answers(asks), strict=True):
            texts.append(self._text(record, until))
            self.cache_hook.add_partial("generate_until", request.args, texts[-1])
        return texts

    def _text(self, record: Record, until: list[str]) -> str:
        """What `hf` makes of the tokens: it decodes them by themselves, and cuts then."""
        tokens, think_end = list(record.token_ids or ()), self._think_end
        if isinstance(think_end, int):
            after = len(tokens) - tokens[::-1].index(think_end) if think_end in tokens else 0
            text = self.tokenizer.decode(tokens[after:], skip_special_tokens=True).lstrip()
            return postprocess_generated_text(text, until, None)
        text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return postprocess_generated_text(text, until, think_end)

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Return whole texts' log-probabilities, those beyond the context in windows."""
        windows = [
            [
                ((None, None), *window)
                for window in map(
                    make_disjoint_window,
                    get_rolling_token_windows(
                        token_list=self.tok_encode(request.args[0]),
                        prefix_token=self.prefix_token_id,
                        max_seq_len=self.max_length,
                        context_len=1,
                    ),
                )
            ]
            for request in requests
        ]
        scores = iter(self._loglikelihood_tokens(list(chain.from_iterable(windows))))
        totals = []
        for request, pieces in zip(requests, windows, strict=True):
            totals.append(sum(next(scores)[0] for _ in pieces))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, totals[-1])
        return totals

    def _loglikelihood_tokens(
        self, requests: Seq[tuple[Any, list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """Return (log-probability, whether greedy decoding says the same) of each continuation."""
        asks = []
        for _, context, continuation in requests:
            if not 0 < len(continuation) <= self.max_length:
                raise RequestError(
                    f"a continuation has {len(continuation)} tokens, and the context holds "
                    f"{self.max_length}: it cannot be scored"
                )
            tokens = (context + continuation)[-(self.max_length + 1) :]
            asks.append(Ask.score(tokens, len(continuation)))
        scores = [score_of(record) for record in self._answers(asks)]
        for (cache_key, _, _), score in zip(requests, scores, strict=True):
            if cache_key != (None, None):
                self.cache_hook.add_partial("loglikelihood", cache_key, score)
        return scores

    # -- a request of the harness as one of the engine --------------------------------------------

    def _continuation(
        self, context: str, options: dict[str, Any], eos: str
    ) -> tuple[Ask, list[str]]:
        """What is asked, and the strings at which the text is to be cut."""
        values = dict(normalize_gen_kwargs(options, self._max_gen_toks))
        until = [stop for stop in handle_stop_sequences(values.pop("until", None), eos) if stop]
        most = values.pop("max_gen_toks")
        room = self.max_length - most
        if room < 1:
            raise UsageError(
                f"max_gen_toks is {most}, and the context holds {self.max_length}: ask for fewer"
            )
        prompt = self.tok_encode(context)[-room:]
        drawn = sampling_values(
            values, self._generation, len(prompt), most, self._ends, self._vocab_size
        )
        # The stops of a task may occur in the thoughts before an answer.
        stop = [eos] if self._think_end is not None else until
        return Ask(prompt, SamplingParams(max_tokens=most, stop=stop, **drawn)), until

    def _answers(self, asks: Seq[Ask]) -> Iterator[Record]:
        """The record of each, drawn or from the journal; equal asks are samples of one request."""
        counts: dict[str, int] = {}
        by_digest: dict[str, Ask] = {}
        keys = []
        for ask in asks:
            digest = ask.digest
            sample = 0 if ask.params.is_greedy else counts.get(digest, 0)
            counts[digest] = counts.get(digest, 0) + 1
            by_digest[digest] = ask
            keys.append(Key(digest, digest, sample))
        wanted = set(keys)
        with Journal.open(
            self._journal, self._identity, fingerprints=self._fingerprints
        ) as journal:
            found = {record.key: record for record in journal.records() if record.key in wanted}
            left: dict[str, list[int]] = {}
            for key in dict.fromkeys(keys):
                if key not in found:
                    left.setdefault(key.problem_id, []).append(key.sample or 0)
            for record in self._drawn(by_digest, left):
                journal.append(record)
                found[record.key] = record
            journal.close()
        return (found[key] for key in keys)

    def _drawn(self, asks: Mapping[str, Ask], left: Mapping[str, list[int]]) -> Iterator[Record]:
        """Records of the samples that are still to be drawn, as they finish."""
        if not left:
            return
        splits = splits_of(asks, _BLOCK_SIZE)
        digests = {random_key(digest): digest for digest in left}
        requests = [
            asks[digest].request(key, left[digest], splits[digest])
            for key, digest in digests.items()
        ]
        engine = self._llm.engine
        engine.check(*requests)
        remaining = {digest: len(samples) for digest, samples in left.items()}
        total = sum(remaining.values())
        longest = longest_of(request.params.max_tokens for request in requests)
        with Progress(engine.stats, total, len(requests), None, longest) as progress:
            for completion in engine.generate(requests, seed=self._seed):
                digest = digests[completion.request.key]
                yield asks[digest].record(digest, completion)
                remaining[digest] -= 1
                progress.advance(len(completion.token_ids), remaining[digest] == 0)

    def _default_journal(self) -> Path:
        text = json.dumps([self._identity, self._fingerprints], sort_keys=True)
        digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
        return Path("runs") / f"lm-eval-{digest}.jsonl"


def _generation_config(source: Source, config: Any) -> dict[str, Any]:
    """What `generate()` reads of the model, as transformers finds it when it loads one."""
    try:
        found = GenerationConfig.from_pretrained(source.name, **source.place)
    except OSError:
        found = GenerationConfig.from_model_config(config)
    values: dict[str, Any] = found.to_dict()
    return {name: value for name, value in values.items() if value is not None}


def _listed(value: int | list[int] | None) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)
