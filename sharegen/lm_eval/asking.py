"""What one request of the harness comes to: tokens to go on from or to score, and its result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.engine.core.request import Completion, Request, SamplingParams
from sharegen.errors import RequestError
from sharegen.results.journal.record import Record

_SCORED = "score"  # how the journal's line of a log-likelihood ended
_GREEDY = "greedy"  # its answer where greedy decoding would have said the same


@dataclass(frozen=True)
class Ask:
    """A request: tokens, and how they are continued.

    scored: how many tokens' log-probabilities are wanted: that of the one that params allow alone,
    which comes behind the prompt, and those of the prompt's last ones. 0 where the prompt is to be
    continued.
    """

    prompt: list[int]
    params: SamplingParams
    scored: int = 0

    @classmethod
    def score(cls, tokens: list[int], scored: int) -> Ask:
        """The log-probabilities of the last tokens.

        The last one is never fed: a text may be one token longer than the context.
        """
        *prompt, last = tokens
        params = SamplingParams(
            temperature=0,
            max_tokens=1,
            allowed_token_ids=[last],
            logprobs=1,
            prompt_logprobs=1 if scored > 1 else None,
            detokenize=False,
        )
        return cls(prompt, params, scored)

    @property
    def digest(self) -> str:
        """What tells it from others, in this process and in the next."""
        values = {name: value for name, value in vars(self.params).items() if name != "n"}
        text = json.dumps([self.prompt, self.scored, values], sort_keys=True, default=list)
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def request(self, key: int, samples: Sequence[int], splits: Sequence[int]) -> Request:
        """Make the engine's request. splits: where the tree of all that are asked splits its
        prompt.
        """
        first = max(1, len(self.prompt) + 1 - self.scored)
        return Request(
            key,
            self.prompt,
            self.params,
            samples,
            splits=splits,
            logprobs_from=first,
            fills_context=self.scored > 0,
        )

    def record(self, digest: str, completion: Completion) -> Record:
        """One line of the journal. Raises RequestError where the sample failed."""
        if completion.error is not None:
            raise RequestError(f"a sample failed: {completion.error}")
        if not self.scored:
            return Record(
                digest,
                completion.sample,
                digest,
                completion=completion.text or "",
                num_tokens=len(completion.token_ids),
                finish_reason=completion.finish_reason,
                cumulative_logprob=completion.cumulative_logprob,
                token_ids=completion.token_ids,
            )
        of_prompt = completion.prompt_logprobs or []
        last = completion.logprobs or []
        entries = [*of_prompt[len(of_prompt) + 1 - self.scored :], *last]
        known = [entry for entry in entries if entry is not None]
        assert len(known) == self.scored
        greedy = all(next(iter(entry.top)) == entry.token_id for entry in known)
        return Record(
            digest,
            completion.sample,
            digest,
            num_tokens=self.scored,
            finish_reason=_SCORED,
            cumulative_logprob=sum(entry.logprob for entry in known),
            answer=_GREEDY if greedy else None,
        )


def score_of(record: Record) -> tuple[float, bool]:
    """A log-likelihood, and whether greedy decoding says the same."""
    logprob = record.cumulative_logprob
    return (float("-inf") if logprob is None else logprob), record.answer == _GREEDY


def splits_of(asks: Mapping[str, Ask], block_size: int) -> dict[str, list[int]]:
    """Where each prompt is split, by digest, in the tree of all prompts, recorded or not.

    Splits decide the last bits, and a run that goes on from a journal is to have the same ones.
    """
    tree = PrefixTree.build([ask.prompt for ask in asks.values()], block_size)
    digests = list(asks)
    return {digests[i]: node.splits() for node in tree.nodes() for i in node.requests}
