"""How each running row is to be sampled, as arrays on the device.

A row is a running sequence's place in the batch. The host writes a row when a sequence starts and
moves it when an empty row is filled; a decoding step only reads. `features()` says on the host what
the live rows ask for, so that a step pays for nothing else and a CUDA graph can be keyed by it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sharegen.engine.core.beam_search import num_candidates
from sharegen.engine.core.request import SamplingParams
from sharegen.engine.sample.allowed import AllowedTokens
from sharegen.engine.sample.logit_edits import Edit, LogitEdits, edits_of
from sharegen.engine.sample.penalties import PromptTokens
from sharegen.engine.text.stopping import end_tokens
from sharegen.errors import RequestError
from sharegen.kernels.transfer import send

_FURTHER_ENDS = 6
"""Tokens that end a row beside the model's own ones, for which there is room where rows arrive."""

_FLOATS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
)


@dataclass(frozen=True)
class Features:
    """What the live rows ask of a step; hashable, a CUDA graph's key.

    filtered: some row that draws has top_k, top_p or min_p. penalised: some row has a penalty,
    repeats: a repetition penalty. edit_slots, edit_context: the widths of the state's logit edits,
    0 where no row has one. allowed: some row may draw some tokens only; masked: some row is told at
    each step which. top_logprobs: the most of a row's likeliest tokens that one asks for, -1 for
    none. processed: log-probabilities are of the distribution that is drawn from. steady: what one
    row asks for changes no bit of another.
    """

    filtered: bool = False
    penalised: bool = False
    repeats: bool = False
    edit_slots: int = 0
    edit_context: int = 0
    allowed: bool = False
    masked: bool = False
    top_logprobs: int = -1
    processed: bool = False
    steady: bool = False

    @property
    def adjusted(self) -> bool:
        """Whether some row's logits change before they are drawn from."""
        return self.looks_back or self.allowed or self.masked

    @property
    def looks_back(self) -> bool:
        """Whether that depends on the tokens before."""
        return self.penalised or self.edit_slots > 0


@dataclass(frozen=True)
class _RowRequest:
    """What params ask of a row.

    floats: in the order of _FLOATS. top_k: of the vocabulary's size where there is no limit. ends:
    tokens. logprobs: likeliest tokens that are reported, -1 for none. flags: of `features`.
    """

    floats: list[float]
    top_k: int
    ends: tuple[int, ...]
    edits: list[Edit]
    logprobs: int
    flags: tuple[bool, ...]


def _doubled(width: int) -> int:
    """The next power of two."""
    return 1 << (width - 1).bit_length()


class SamplingState:
    """The sampling parameters of up to max_rows rows, as arrays on the device.

    The arrays keep their addresses, but for end_ids and edits, which are replaced when a row needs
    more room (num_end_ids and the features tell).

    Args:
        max_rows: the most rows.
        vocab_size: tokens of the vocabulary.
        device: where the arrays lie.
        eos_token_ids: the model's tokens that end a sample.
        tokenizer: turns words that a request bars into tokens; None where there is none.
        processed: whether log-probabilities are of the distribution that is drawn from.
        steady: whether what one row asks for is to change no bit of another, on a GPU too.
        arriving: whether nobody knows yet what will be asked: end_ids then have room for some ends
            beside the model's, and widen by doubling.

    Attributes:
        temperature, top_p, min_p: [max_rows] float32.
        repetition, frequency, presence: [max_rows] float32, the penalties.
        top_k: [max_rows] int64, vocab_size where there is no limit.
        keys: [max_rows] int64, from `row_key`.
        end_ids: [max_rows, E] int64, the tokens that end the row; -1 pads.
    """

    def __init__(
        self,
        max_rows: int,
        vocab_size: int,
        device: torch.device | str = "cpu",
        *,
        eos_token_ids: Sequence[int] = (),
        tokenizer: Any = None,
        processed: bool = False,
        steady: bool = False,
        arriving: bool = False,
    ) -> None:
        self.max_rows = max_rows
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        self.eos_token_ids = tuple(eos_token_ids)
        self.tokenizer = tokenizer
        self.processed = processed
        self.steady = steady
        self._send = partial(send, self.device)
        self.edits = LogitEdits(max_rows, self._send)
        self.allowed = AllowedTokens(max_rows, vocab_size, self._send)
        self.masks = AllowedTokens(max_rows, vocab_size, self._send)
        self.prompt_tokens = PromptTokens(max_rows, vocab_size, self._send)
        floats = (max_rows, len(_FLOATS))
        self._floats = torch.ones(floats, dtype=torch.float32, device=self.device)
        self._ints = torch.zeros(max_rows, 2, dtype=torch.int64, device=self.device)
        self._ints[:, 1] = vocab_size  # rows never set are drawn from too
        self.temperature, self.top_p, self.min_p = self._floats.unbind(1)[:3]
        self.repetition, self.frequency, self.presence = self._floats.unbind(1)[3:]
        self.keys, self.top_k = self._ints.unbind(1)
        self._arriving = arriving
        width = _doubled(len(self.eos_token_ids) + _FURTHER_ENDS) if arriving else 1
        self.end_ids = torch.full((max_rows, width), -1, dtype=torch.int64, device=self.device)
        # The host's copy of what `features` needs, one column a feature.
        self._flags = np.zeros((max_rows, 6), dtype=bool)
        self._logprobs = np.full(max_rows, -1)

    def check(self, params: SamplingParams) -> None:
        """Raise RequestError for what this vocabulary or the missing tokenizer cannot serve."""
        for name in ("logit_bias", "allowed_token_ids"):
            for token in getattr(params, name) or ():
                if not 0 <= token < self.vocab_size:
                    raise RequestError(
                        f"{name} names token {token}: the model's vocabulary has the ids 0 to "
                        f"{self.vocab_size - 1}"
                    )
        if params.bad_words and self.tokenizer is None:
            raise RequestError(
                "bad_words need a tokenizer: load one, or bar single tokens with logit_bias"
            )
        if params.allowed_token_ids is not None:
            edits = edits_of(params, self.tokenizer, self.eos_token_ids, self.vocab_size)
            barred = {edit.token for edit in edits if edit.value == -math.inf and not edit.prefix}
            if barred.issuperset(params.allowed_token_ids):
                raise RequestError(
                    "logit_bias, bad_words or min_tokens bar all allowed_token_ids: there is no "
                    "token to draw"
                )

    def set_rows(
        self,
        rows: Sequence[int],
        params: Sequence[SamplingParams],
        keys: Sequence[int],
        prompts: Sequence[Sequence[int] | np.ndarray],
        beam_widths: Sequence[int] | None = None,
    ) -> None:
        """Write what the sequences that start (or start again) in `rows` ask for.

        keys: from `row_key`, one a row; prompts: the prompt's token ids, one list a row;
        beam_widths: of the beam searches that the rows are part of, 0 for none, as by default.
        """
        if not rows:
            return
        rows = list(rows)
        distinct = {id(p): p for p in params}  # the samples of a request share theirs
        place = {key: i for i, key in enumerate(distinct)}
        which = np.array([place[id(p)] for p in params])
        asked = [self._asked(p) for p in distinct.values()]
        width = max(self.num_end_ids, *(len(one.ends) for one in asked))
        if width > self.num_end_ids:
            width = _doubled(width) if self._arriving else width
            missing = width - self.num_end_ids
            self.end_ids = torch.nn.functional.pad(self.end_ids, (0, missing), value=-1)
        end_ids = np.full((len(asked), width), -1, dtype=np.int64)
        for row, one in zip(end_ids, asked, strict=True):
            row[: len(one.ends)] = one.ends
        top_k = np.array([one.top_k for one in asked], dtype=np.int64)
        index, new_floats, new_ints, new_ends = self._send(
            np.asarray(rows, dtype=np.int64),
            np.array([one.floats for one in asked], dtype=np.float32)[which],
            np.stack([np.asarray(keys, dtype=np.int64), top_k[which]], axis=1),
            end_ids[which],
        )
        self._floats[index] = new_floats
        self._ints[index] = new_ints
        self.end_ids[index] = new_ends
        self.edits.set_rows(rows, [asked[i].edits for i in which.tolist()], prompts)
        self.allowed.set_rows(rows, [p.allowed_token_ids for p in params])
        self.masks.set_rows(rows, [None] * len(rows))
        self._flags[rows] = np.array([one.flags for one in asked])[which]
        num_ends = np.array([len(one.ends) for one in asked])[which]
        looked_at = [
            num_candidates(width, count) if width else -1
            for width, count in zip(beam_widths or repeat(0), num_ends.tolist(), strict=False)
        ]
        reported = np.array([one.logprobs for one in asked])[which]
        self._logprobs[rows] = np.maximum(reported, looked_at)
        repeating = [i for i, p in enumerate(params) if p.repetition_penalty != 1]
        self.prompt_tokens.set_rows([rows[i] for i in repeating], [prompts[i] for i in repeating])

    def move_rows(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy rows onto others; no row may be both a source and a target."""
        if not sources:
            return
        sources, targets = list(sources), list(targets)
        source, target = self._send(np.asarray(sources), np.asarray(targets))
        for array in (self._floats, self._ints, self.end_ids):
            array[target] = array[source]
        self.edits.move_rows(source, target)
        self.allowed.move_rows(source, target)
        self.masks.move_rows(source, target)
        self.prompt_tokens.move_rows(source, target)
        self._flags[targets] = self._flags[sources]
        self._logprobs[targets] = self._logprobs[sources]

    def fresh(
        self,
        params: Sequence[SamplingParams],
        keys: Sequence[int],
        prompts: Sequence[Sequence[int] | np.ndarray],
        beam_widths: Sequence[int] | None = None,
    ) -> SamplingState:
        """A state of its own for sequences that have no row yet (their first tokens)."""
        state = SamplingState(
            len(params),
            self.vocab_size,
            self.device,
            eos_token_ids=self.eos_token_ids,
            tokenizer=self.tokenizer,
            processed=self.processed,
            steady=self.steady,
        )
        state.set_rows(range(len(params)), params, keys, prompts, beam_widths)
        return state

    def features(self, num_rows: int | None = None) -> Features:
        """What the first num_rows rows ask for (default: all; rows never set ask for nothing)."""
        flags = np.atleast_1d(self._flags[:num_rows].any(0)).tolist()
        filtered, penalised, repeats, edited, allowed, masked = flags
        return Features(
            filtered=filtered,
            penalised=penalised,
            repeats=repeats,
            edit_slots=self.edits.num_slots if edited else 0,
            edit_context=self.edits.context if edited else 0,
            allowed=allowed,
            masked=masked,
            top_logprobs=min(int(self._logprobs[:num_rows].max(initial=-1)), self.vocab_size),
            processed=self.processed,
            steady=self.steady,
        )

    @property
    def num_end_ids(self) -> int:
        return self.end_ids.shape[1]

    def is_end(self, tokens: Tensor, rows: slice | Tensor) -> Tensor:
        """Whether each row's token is an EOS or stop token id of that row: bool [n], on device."""
        return (tokens[:, None] == self.end_ids[rows]).any(-1)

    def _asked(self, params: SamplingParams) -> _RowRequest:
        top_k = min(params.top_k, self.vocab_size) if params.top_k > 0 else self.vocab_size
        edits = edits_of(params, self.tokenizer, self.eos_token_ids, self.vocab_size)
        filters = top_k < self.vocab_size or params.top_p < 1 or params.min_p > 0
        repeats = params.repetition_penalty != 1
        penalised = repeats or params.frequency_penalty != 0 or params.presence_penalty != 0
        return _RowRequest(
            floats=[getattr(params, name) for name in _FLOATS],
            top_k=top_k,
            ends=tuple(end_tokens(params, self.tokenizer, self.eos_token_ids)),
            edits=edits,
            logprobs=-1 if params.logprobs is None else params.logprobs,
            flags=(
                filters and not params.is_greedy, penalised, repeats, bool(edits),
                params.allowed_token_ids is not None, params.structured_outputs is not None,
            ),
        )  # fmt: skip
