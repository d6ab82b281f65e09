"""The words by which answers, steps, doubts and courtesies are known; mostly English.

Each is a regular expression without case. The lists are what models were seen to write;
docs/reference/answers.md says what of other languages is read.
"""

from __future__ import annotations

import re


def _one_of(phrases: str) -> str:
    """Alternatives that are written in several lines, spaces in them escaped."""
    return "(?:" + re.sub(r"\n\s*", "", phrases) + ")"


def _search(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


_BULLET = r"[\s*_>#(-]{0,20}"

STEP = _search(
    r"[\s*_]{0,20}(?:"
    + _one_of(
        r"""step|part|case|day|section|phase|stage|question|problem|method|option|example
        |approach|note|solution|explanation|calculations?|given|breakdown|check|checking
        |verification|analysis|understanding|known|what|how|why|find|finding|calculate
        |calculating|determine|compute|add|subtract|multiply|divide|first|second|third|next
        |now"""
    )
    + r"\b|\(?(?:\d{1,2}|[A-Za-z]|[ivxIVX]{1,4})[.):]\s+\S)"
)
"""How a heading of a step begins."""

MERE_LABEL = _search(
    _BULLET
    + _one_of("step|part|case|question|problem|option|example|figure|table|equation")
    + r"\s*\d+[\s.:*_)]*\D*$"
)
"""A line whose only number counts steps."""

ANSWER = (
    r"(?:(?:final|correct|right|best|overall|short|numerical|numeric|exact|actual|my|our|your|the"
    r"|simplified)\s+){0,4}"
    + _one_of(
        r"""answer|ans|final\ (?:answer|result|value|total|count|solution|number|amount)
        |答案|答え|答|最终答案|正解|정답|답
        |antwort|lösung|ergebnis|réponse(?:\ finale)?|respuesta(?:\ final)?
        |resposta(?:\ final)?|risposta(?:\ finale)?|ответ|відповідь|odpowiedź|antwoord|svar
        |cevap|jawaban"""
    )
)
"""What stands before the colon of a label."""

SAYS = _search(
    r"(?P<doubt>\b"
    + _one_of(
        r"""if|whether|suppose|assuming|unless|an?|first|initial|previous|intermediate
        |preliminary|wrong|incorrect|another|old"""
    )
    + r"\s+(?:that\s+)?(?:the\s+|my\s+)?)?\b(?:answer|final\ result)\b"
    + r"(?P<between>[^\n.?!:=]{0,80}?)(?:\b"
    + _one_of(
        r"""is|was|equals|should\ be|would\ be|must\ be|will\ be|becomes|comes\ out\ to
        |comes\ to|remains"""
    )
    + r"\b[*_]*\s?:?|[*_]{0,3}\s?[:=])[*_]*"
)
"""The answer is ...; doubt: where it may not be."""

ANSWER_ELSEWHERE = (
    "答", "답", "antwort", "lösung", "ergebnis", "réponse", "respuesta", "resposta", "risposta",
    "antwoord", "svar", "odpowied",
)  # fmt: skip
"""One of these stands in each of the following."""

SAYS_ELSEWHERE = _search(
    _one_of(
        r"""答案(?:应该|应)?(?:是|为|為)|答えは|정답은|답은
        |(?:antwort|lösung|ergebnis)\ (?:ist|lautet|beträgt)
        |réponse\ (?:finale\ )?est|respuesta\ (?:final\ |correcta\ )?es
        |resposta\ (?:final\ |correta\ )?é|risposta\ (?:finale\ |corretta\ )?è|antwoord\ is
        |svaret\ är|odpowiedź\ to"""
    )
)
"""The same in other languages."""

CIRCUMSTANCE = _search(
    r"(?:\b"
    + _one_of(
        r"""in|after|over|within|during|per|every|each|from|among|between|at|with|on|than|out\ of
        |through|throughout|across|into|last|next|first|before|until|till|all|both|the|these|those
        |his|her|their|its|our|your|other|another|step|part|days?|week|month|year|option|question
        |case|problem|equation|example|no\.|number|round|chapter|page|room|grade|level|figure|table
        |version|line|age|aged|(?P<money>for)"""
    )
    + r"|\d\S*\s+(?:\w+\s+)?of(?:\sthe)?|[#№]"
    + r"|\b(?:each|all|one|some|most|half|none|any)\ of(?:\sthe)?)"
    + r"\s*(?:"
    + r"(?:just|only|about|all|an?|the|her|his|their|these|those|first|next|last|past|original)"
    + r"\s+){0,3}"
    + r"(?:\\?\$|\*\*){0,2}\s*$"
)
"""What stands before a number that says when, among how many, at what rate, or counts steps."""

REASON = _search(
    r"[,;]?\s\b"
    + _one_of(
        r"""because|who(?:se)?|or\ (?:about|approximately|roughly)|since|given\ that|which|if|when
        |assuming|as\ (?:it|he|she|they|we|there|the)|by\ \w+ing|where|while|whereas|after\ \w+ing
        |so\ that|leaving|instead\ of|rather\ than|not"""
    )
    + r"\b"
)
"""What begins the part of a sentence that says why, or under which condition."""

SUBORDINATE = _search(
    r"[\s*_>#-]{0,20}"
    + _one_of(
        r"""since|because|if|when|as|given|assuming|with|after|before|for|in|while|although|though
        |by|from|out\ of"""
    )
    + r"\b[^\n]*?,\s"
)
"""A first part of a sentence that says under which condition the rest holds."""

FOLLOWS = _search(
    r"[,;]\s(?:and\s)?"
    + _one_of(r"so(?!\ that)|thus|therefore|hence|then|meaning|giving|making|leaving")
    + r"\b"
)
"""What begins the part of a sentence that follows from the rest."""

TAKES = _search(r"\b(?:takes?|took)\b[^.]*?\d[^.]*?(?P<what>\sto\s[a-z]+)")
"""It takes 5 days to ...: what is behind `to` says no more how long."""

PARTIAL = _search(r"\b(?:first|part|step|second|previous|intermediate|not|isn't)\b")
"""What makes of "the answer ... is" no answer to the whole."""

CONCLUDES = _search(
    _BULLET
    + _one_of(
        r"""so|thus|therefore|hence|consequently|accordingly|in\ total|altogether|in\ all
        |in\ conclusion|to\ conclude|in\ summary|finally|overall|ultimately|as\ a\ result
        |it\ follows|we\ conclude"""
    )
    + r"\b|\s*(?:所以|因此|故)"
)
"""How a sentence begins that says what follows from what stands before."""

STATES = _search(
    r"=|\b(?:is|are|was|were|equals?|gives?|makes?|gets?|has|have|should be|comes to|meant)\b"
    r"|\b(?:it|that|answer|total|result)['’]s\b|\bno:"
    r"|(?:correct(?:ion|ed)|revised)\b[^:\n]{0,20}:"
)
"""A sentence that says what something is."""

POLITE = _search(
    r"\b"
    + _one_of(
        r"""let\ me\ know|hope\ (?:this|that|it|these)|feel\ free|is\ there\ anything
        |happy\ to\ help|please|thank\ you|thanks|you're\ welcome|would\ you\ like
        |do\ you\ want|if\ you\ (?:have|need|want|would)|good\ luck|great\ question|glad\ to"""
    )
    + r"\b"
)
"""A sentence that thanks or offers."""

EXPLAINS = _search(
    _BULLET
    + _one_of(
        r"""(?:this|that|it)(?:'s|\ is|\ was)?\ (?:because|since)|(?=\w+\ [^,]*$)(?:because|since)
        |note|nb|remember|here|explanation|reasoning|assumptions?|assuming|check|checking
        |to\ (?:check|verify)|verif\w+|proof|let(?:'s|\ us|\ me)\ (?:check|verify|double)
        |(?:this|that|which)\ (?:is|was)\ (?:calculated|found|obtained|computed)|if\ you
        |for\ (?:example|reference)|p\.?s\.?|sources?"""
    )
    + r"\b"
)
"""How a sentence begins that explains or checks what was said."""

REFUSES = _search(
    r"\b"
    + _one_of(
        r"""can(?:not|'t|\ not)\ (?:be\ )?(?:\w+\ )?(?:determined?|answer(?:ed)?|solved?|tell|say
        |calculated?|computed?|help|assist|provide|find|found|known?|conclude|give|do\ that)
        |(?:not|n't)\ (?:enough|sufficient)\ (?:information|data|details)
        |insufficient\ (?:information|data)
        |impossible\ to\ (?:determine|say|tell|know|answer|solve|calculate)|unable\ to
        |not\ possible\ to|(?:do\ not|don't|did\ not)\ know|not\ sure\ (?:what|how|about)
        |no\ (?:\w+\ )?(?:solutions?|answer)\b
        |(?:is|are|answer:?)\ (?:undefined|indeterminate|unknown|unclear)
        |does(?:\ not|n't)\ exist|not\ (?:determinable|solvable)|i(?:'m|\ am)\ sorry"""
    )
)
"""A sentence that gives no answer."""

NOTHING = _search(
    r"[\s*_:$\"'(\[]{0,20}"
    + _one_of(
        r"""none|n/?a|nan|unknown|undefined|null|impossible|infinit\w*|indeterminate|\?+
        |not\ (?:given|known|available|possible|applicable)
        |no\ (?:\w+\ )?(?:solutions?|answer)"""
    )
    + r"[\s*_.$\"')\]]{0,20}$"
)
"""All of an answer that is none."""

_TAKES_BACK = _search(
    r"\b"
    + _one_of(
        r"""wait|actually|correction|(?:made|is|was)\ an?\ (?:mistake|error|slip)|my\ mistake
        |oops|sorry|apologi[sz]e|apologies|scratch\ that|on\ second\ thought|i\ was\ wrong
        |hold\ on|hmm
        |let\ me\ (?:re-?check|re-?do|re-?calculate|re-?compute|reconsider|re-?examine|correct|fix)
        |let\ me\ double[-\ ]check|that(?:'s|\ is|\ was|\ can't\ be)\ (?:wrong|incorrect)
        |that(?:'s|\ is|\ was)\ not\ (?:right|correct)"""
    )
)
_BACK_WORDS = ("wait", "actual", "correct", "mistake", "error", "slip", "oops", "sorry", "apolog",
               "scratch", "second", "wrong", "hold", "hmm", "let me", "not right")  # fmt: skip


def taken_back(text: str, start: int = 0) -> re.Match[str] | None:
    """What takes an answer back that was given before, from `start` on."""
    if text.isascii():  # then every such phrase has one of the words, which are found far sooner
        lower = text[start:].lower()
        if not any(word in lower for word in _BACK_WORDS):
            return None
    return _TAKES_BACK.search(text, start)


WRONG = _search(r"\b(?:wrong|incorrect|not correct|not right|mistaken|a mistake)\b")
NOT = _search(r"[\s*_:]{0,10}(?:not|n't|never)\b")

NEXT_QUESTION = re.compile(
    r"(?m)^[ \t#*_]{0,20}(?:Question|Q|Problem|Exercise|Human|User|Instruction|Input)\s?\d*\s?:"
)
"""Where a model that was shown examples goes on with another."""
