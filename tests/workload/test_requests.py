from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from sharegen.common import confined, grammar
from sharegen.errors import DataError
from sharegen.workload.configuration import resolve
from sharegen.workload.problem import Workload, batch_requests, load_workload
from sharegen.workload.request_body import Fault
from sharegen.workload.requests import BatchRequest, RequestedPrompts
from tests.common.crashing import try_out_unchecked

TURNS = [{"role": "user", "content": "Tom?"}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def line(
    custom_id: Any = "a", url: Any = CHAT, method: Any = "POST", **body: Any
) -> dict[str, Any]:
    own = {"messages": TURNS} if url == CHAT else {"prompt": "Tom?"}
    return {"custom_id": custom_id, "method": method, "url": url, "body": {**own, **body}}


@pytest.fixture
def requests(tmp_path: Path) -> Any:
    def requests(*lines: dict[str, Any] | str, **flags: Any) -> list[BatchRequest]:
        return batch_requests(configured(tmp_path, *lines, **flags))

    return requests


def configured(folder: Path, *lines: dict[str, Any] | str, **flags: Any) -> Any:
    texts = (each if isinstance(each, str) else json.dumps(each) for each in lines)
    (folder / "requests.jsonl").write_text("\n".join(texts))
    return resolve("batch", str(folder / "requests.jsonl"), {"model": "a/b", **flags})


@pytest.fixture
def workload(tmp_path: Path) -> Any:
    def workload(*lines: dict[str, Any] | str, **flags: Any) -> Workload:
        return load_workload(configured(tmp_path, *lines, **flags))

    return workload


def test_a_body_says_how_its_samples_are_drawn(requests: Any) -> None:
    """What it leaves out, or has null, is the job's."""
    given = {"n": 3, "temperature": 0, "top_p": 0.5, "max_completion_tokens": 7, "seed": 5}
    extra = {"stop": "x", "presence_penalty": 1, "frequency_penalty": -1, "top_k": 4, "min_p": 0.1}
    own, other = requests(
        line("a", **given, **extra),
        line("b", n=None, temperature=None),
        sampling={"temperature": 0.25, "samples": 2},
    )
    values = own.asked.sampling.model_dump(exclude_defaults=True)
    wanted = {**given, **extra, "stop": ["x"], "samples": 3, "max_tokens": 7}
    del wanted["n"], wanted["max_completion_tokens"]
    assert values == wanted
    assert other.asked.sampling.temperature == 0.25 and other.asked.sampling.samples == 2


def test_completions_are_short_and_chats_are_not_unless_it_is_said(requests: Any) -> None:
    chat, text = requests(line("a"), line("b", TEXT))
    assert (chat.asked.sampling.max_tokens, text.asked.sampling.max_tokens) == (None, 16)
    chat, text = requests(line("a"), line("b", TEXT), sampling={"max_tokens": 50})
    assert (chat.asked.sampling.max_tokens, text.asked.sampling.max_tokens) == (50, 50)


@pytest.mark.parametrize(
    ("prompt", "contents"),
    [
        ("Tom?", ["Tom?"]),
        ([5, 6], [(5, 6)]),
        (["a", "b"], ["a", "b"]),
        ([[5], [6, 7]], [(5,), (6, 7)]),
    ],
)
def test_prompts_of_every_kind(workload: Any, prompt: Any, contents: list[Any]) -> None:
    problems = workload(line(url=TEXT, prompt=prompt)).problems
    assert [problem.prompt.content for problem in problems] == contents
    names = ["a"] if len(contents) == 1 else ["a[0]", "a[1]"]
    assert [problem.id for problem in problems] == names


def test_a_chat_takes_the_jobs_options_and_its_own(requests: Any) -> None:
    tool = {"type": "function", "function": {"name": "add"}}
    kwargs = {"enable_thinking": False}
    (one,) = requests(
        line(tools=[tool], chat_template_kwargs={"tone": "kind"}), chat={"template_kwargs": kwargs}
    )
    options = one.asked.prompts[0].options
    assert options.tools == [tool]
    assert options.template_kwargs == {"enable_thinking": False, "tone": "kind"}
    (none,) = requests(line(tools=[tool], tool_choice="none"))
    ended = [*TURNS, {"role": "assistant", "content": "Yes,"}]
    (on,) = requests(
        line(messages=ended, continue_final_message=True), chat={"add_generation_prompt": True}
    )
    assert not on.asked.prompts[0].options.begins_turn
    assert none.asked.prompts[0].options.tools is None


def test_parameters_are_part_of_what_a_request_is_known_by(workload: Any) -> None:
    """Another number of samples is the same request with more of them."""

    def row(**body: Any) -> str:
        return workload(line(**body)).problems[0].row_hash

    assert row(n=1) == row(n=4) != row(temperature=0.5)
    assert row(seed=1) != row(seed=2)


def schema_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def test_response_format_is_a_spelling_of_structured_outputs(requests: Any) -> None:
    schema = {"type": "object", "properties": {"b": {"type": "null"}, "a": {"type": "null"}}}
    one, other, none = requests(
        line("1", response_format=schema_format(schema)),
        line("2", structured_outputs={"json": schema}),
        line("3", response_format={"type": "text"}),
    )
    asked = one.asked.sampling.structured_outputs
    assert asked == other.asked.sampling.structured_outputs == {"json": json.dumps(schema)}
    assert none.asked.sampling.structured_outputs is None


@pytest.mark.parametrize("url", [CHAT, TEXT])
def test_every_parameter_of_openais_package_may_be_null(requests: Any, url: str) -> None:
    pytest.importorskip("openai")
    from openai.types import completion_create_params as text
    from openai.types.chat import completion_create_params as chat

    params = (chat if url == CHAT else text).CompletionCreateParamsNonStreaming
    names = params.__required_keys__ | params.__optional_keys__
    nulls = dict.fromkeys(names - {"messages", "prompt", "model"})
    plain, full, typo = requests(
        line("a", url), line("b", url, **nulls), line("c", url, temprature=None)
    )
    assert len(nulls) > 15 and plain.asked == full.asked == typo.asked


@pytest.mark.parametrize(
    "body",
    [
        {"store": True, "service_tier": "flex", "parallel_tool_calls": False},
        {"safety_identifier": "a", "prompt_cache_key": "b", "prompt_cache_retention": "24h"},
        {"prediction": {"type": "content", "content": "x"}, "prompt_cache_options": {}},
        {"modalities": ["text"], "user": "me", "stream": False},
        {"stop": [], "logit_bias": {}, "tools": [], "logprobs": False, "top_logprobs": 0},
        {"response_format": {"type": "text"}, "function_call": "auto", "tool_choice": "auto"},
    ],
)
def test_what_changes_nothing_of_what_is_drawn_is_taken(
    requests: Any, body: dict[str, Any]
) -> None:
    plain, full = requests(line("a"), line("b", **body))
    assert plain.asked == full.asked


def test_completions_may_say_what_they_have_anyway(requests: Any) -> None:
    body = {"echo": False, "suffix": "", "best_of": 3, "n": 3}
    plain, full = requests(line("a", TEXT, n=3), line("b", TEXT, **body))
    assert plain.asked == full.asked
    (more,) = requests(line("c", TEXT, best_of=5, n=3))
    assert more.asked.message == "best_of is 5 and n 3: ask for n, and keep the best"


def test_functions_are_tools_by_their_former_name(requests: Any) -> None:
    function = {"name": "add", "parameters": {"type": "object"}}
    tool = {"type": "function", "function": function}
    tools, functions, none, both = requests(
        line("a", tools=[tool]),
        line("b", functions=[function]),
        line("c", functions=[function], function_call="none"),
        line("d", functions=[function], tools=[tool]),
    )
    assert functions.asked == tools.asked and none.asked.prompts[0].options.tools is None
    assert both.asked.message == "functions is the former name of tools: give tools"


def test_a_history_as_the_api_itself_returns_it(requests: Any) -> None:
    """With what OpenAI's own types dump of a message."""
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": '}}
    blank = {"refusal": None, "annotations": [], "audio": None, "function_call": None}
    history = [
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}], "name": "x"},
        *TURNS,
        {"role": "assistant", "content": None, "tool_calls": [call], **blank},
        {"role": "tool", "content": "1", "tool_call_id": "1"},
        {"role": "assistant", "content": "One.", "tool_calls": None, **blank, "weight": 0},
        {"role": "assistant", "content": None, **blank},
        *TURNS,
    ]
    (request,) = requests(line(messages=history))
    assert isinstance(request.asked, RequestedPrompts)
    turns = request.asked.prompts[0].content
    assert [turn.get("content") for turn in turns] == [
        "Be brief.", "Tom?", None, "1", "One.", "", "Tom?"
    ]  # fmt: skip
    assert turns[3] == {"role": "tool", "content": "1", "tool_call_id": "1"}


def test_a_request_that_is_not_asked_is_told_as_such(
    workload: Any, caplog: pytest.LogCaptureFixture
) -> None:
    workload(line("a"), line("b", temprature=1)).name_odd_rows()
    (said,) = caplog.messages
    assert said.endswith(
        "requests.jsonl, line 2: unknown field 'temprature': did you mean 'temperature'? "
        "(the request is not asked: this error is its answer)"
    )


@pytest.mark.parametrize(
    ("body", "said", "param"),
    [
        ({"n": 1_000_000}, "n is 1000000: it must be at most 10000", "n"),
        ({"stop": ["x"] * 257}, "stop has 257 texts of up to 1 char", "stop"),
        ({"stop": ["x" * 1_001]}, "stop has 1 texts of up to 1,001 characters: it may", "stop"),
        ({"bad_words": ["x"] * 1_000}, "bad_words has 1,000 texts", "bad_words"),
        ({"stop": "x" * 1_001}, "stop has 1 texts of up to 1,001 characters", "stop"),
        ({"reasoning_effort": "low"}, "is not served: where the chat template", "reasoning_effort"),
        ({"web_search_options": {}}, "web_search_options is not served", "web_search_options"),
        ({"modalities": ["text", "audio"]}, "modalities is 'audio'", "modalities"),
        ({"function_call": {"name": "add"}}, "function_call is {'name'", "function_call"),
        ({"echo": True}, "echo is True", "echo"),
        ({"top_logprobs": 2}, "top_logprobs: needs logprobs: true", "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs is 21", "top_logprobs"),
        ({"logit_bias": {"a": 1}}, "logit_bias is 'a'", "logit_bias"),
        ({"stop_token_ids": [-1]}, "stop_token_ids is -1", "stop_token_ids"),
        ({"allowed_token_ids": []}, "allowed_token_ids is []", "allowed_token_ids"),
        ({"n": 0}, "n is 0: it must be at least 1", "n"),
        ({"guided_choice": ["a"]}, "'guided_choice': use structured_outputs", "guided_choice"),
        ({"n": "2"}, "n is '2'", "n"),
        (
            {"temprature": 1},
            "unknown field 'temprature': did you mean 'temperature'?",
            "temprature",
        ),
        ({"temperature": -1}, "temperature is -1", "temperature"),
        ({"top_p": 2}, "top_p is 2", "top_p"),
        ({"stop": [""]}, "stop is ''", "stop"),
        ({"stream": True}, "stream is True", "stream"),
        ({"max_tokens": 2, "max_completion_tokens": 3}, "differ: give one", "max_tokens"),
        (
            {"max_tokens": 2, "min_tokens": 3},
            "min_tokens is 3: max_tokens, 2, is less",
            "min_tokens",
        ),
        ({"messages": []}, "'messages' is an empty list", "messages"),
        ({"messages": "Tom?"}, "messages is 'Tom?'", "messages"),
        ({"messages": [{"role": "user"}]}, r"messages[0] is of type dict and no turn", "messages"),
        ({"messages": [{**TURNS[0], "role": "assistant"}]}, "ends with a turn of the", "messages"),
        ({"response_format": {"type": "xml"}}, "response_format", "response_format"),
        (
            {"response_format": schema_format({"enum": []})},
            "structured_outputs.json: Unsatisfiable schema",
            "response_format",
        ),
        (
            {"structured_outputs": {"regex": "((a{1,1000}){1,1000}){1,1000}"}},
            "structured_outputs.regex: lexer error: too many expressions",
            "structured_outputs",
        ),
        ({"structured_outputs": {"regx": "a"}}, "has no 'regx'", "structured_outputs"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "text"}},
            "one thing: give one",
            "response_format",
        ),
        (
            {"chat_template_kwargs": {"tokenize": 1}},
            "'tokenize' cannot be the",
            "chat_template_kwargs",
        ),
        ({"tools": ["add"]}, "tools is not a list of schemas", "tools"),
        ({"tool_choice": "required"}, "tool_choice: needs tools", "tool_choice"),
        ({"tool_choice": "any"}, "tool_choice is 'any': it must be none, auto", "tool_choice"),
        (
            {"add_generation_prompt": True, "continue_final_message": True},
            "set one of them",
            "continue_final_message",
        ),
        ({"prompt": "Tom?"}, "unknown field 'prompt'", "prompt"),
    ],
)
def test_what_is_wrong_in_a_body_is_that_requests_error(
    requests: Any, body: dict[str, Any], said: str, param: str
) -> None:
    good, bad = requests(line("good"), line("bad", **body))
    assert isinstance(good.asked, RequestedPrompts) and isinstance(bad.asked, Fault)
    assert said in bad.asked.message and bad.asked.param == param
    assert bad.problem_ids == ["bad"]


def test_the_choices_of_all_prompts_have_a_bound(requests: Any) -> None:
    good, bad = requests(
        line("a", TEXT, prompt=["x"] * 100, n=100), line("b", TEXT, prompt=["x"] * 101, n=100)
    )
    assert isinstance(good.asked, RequestedPrompts)
    assert bad.asked.message.startswith("10,100 choices (prompts times n) are more than 10,000")
    assert bad.asked.param == "prompt"


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("", "a prompt is empty"),
        ([], "prompt is an empty list"),
        ([[]], "a prompt is empty"),
        ([-1], "not a token id"),
        ([2**31], "not a token id"),
        ("\ud800", "half of a character"),
        (None, "prompt is None"),
        ([1, "a"], "prompt is"),
    ],
)
def test_prompts_that_are_none(requests: Any, prompt: Any, said: str) -> None:
    (bad,) = requests(line(url=TEXT, prompt=prompt))
    assert said in bad.asked.message and bad.asked.param == "prompt"


def test_a_body_for_the_other_endpoint_is_an_error(requests: Any) -> None:
    (bad,) = requests(line(url=TEXT, messages=TURNS))
    assert bad.asked.message.startswith("unknown field 'messages'")


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (line("good"), r"line 2: the custom_id 'good' is that of .*line 1, too"),
        (line(7), "line 2: custom_id is 7: it must be a text"),
        (line(""), "custom_id is ''"),
        (line(method="GET"), "method is 'GET': .*sent by POST"),
        (line(url="/v1/embeddings"), "url is '/v1/embeddings': .*there are /v1/chat/completions"),
        ({"custom_id": "b", "method": "POST", "url": TEXT}, "'body' is missing"),
        ("{", "line 2: malformed JSON"),
        (line("b", model="other"), "asks for the model 'other', and others for 'one'"),
    ],
)
def test_a_line_that_is_none_of_a_batch_refuses_the_file(
    requests: Any, bad: Any, said: str
) -> None:
    with pytest.raises(DataError, match=said):
        requests(line("good", model="one"), bad)


def test_a_list_of_prompts_does_not_take_anothers_name(workload: Any) -> None:
    with pytest.raises(DataError, match=r"two rows have the id 'a\[1\]'"):
        workload(line("a", TEXT, prompt=["x", "y"]), line("a[1]"))


def test_without_a_model_the_one_that_the_requests_name(tmp_path: Path) -> None:
    assert configured(tmp_path, line(model="c/d"), model=None).model == "c/d"
    assert configured(tmp_path, line(model="c/d")).model == "a/b"


@pytest.mark.skipif(sys.platform != "linux", reason="how the library crashes there is not known")
def test_schemas_that_kill_the_validator_cost_their_own_requests(
    requests: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them, equal ones, and others before, between and behind them."""
    monkeypatch.setattr(grammar, "try_out", try_out_unchecked)
    grammar._tried.cache_clear()
    confined.stop()  # the next one imports what it is told to
    crash = {"type": "integer", "minimum": -(2**63), "maximum": -(2**63)}
    schemas = [{"type": "object"}, crash, {"enum": [1]}, {**crash, "title": "x"}, crash, {}]
    found = requests(
        *(line(str(n), response_format=schema_format(one)) for n, one in enumerate(schemas))
    )
    for number, request in enumerate(found):
        assert isinstance(request.asked, Fault if number in (1, 3, 4) else RequestedPrompts)
    assert "compiling it ended the process that works it out" in found[3].asked.message
    grammar._tried.cache_clear()
