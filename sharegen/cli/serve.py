"""`sharegen serve`: an OpenAI endpoint for one's own batch clients."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from sharegen.cli.flags import assigned, given
from sharegen.cli.key_options import KEYS, RUN_KEYS, options_of, said_by
from sharegen.cli.parameters import option, parse_path, parse_size, with_options
from sharegen.cli.telling import complain
from sharegen.common.extras import install
from sharegen.common.parameters.groups import FlaggedKey
from sharegen.errors import UsageError

_SECTIONS = ("", "machine")  # the model, and where it runs
# Keys that are a job's. What prompts share here depends on who came before, and so do bits.
_PER_JOB = ("reorder", "token_ids", "machine.ray", "machine.deterministic", "machine.any_tree")
_DEFAULTS = {"machine.workers": "1", "machine.compile": "compile"}
"""What holds where the flag is not given, if that is not what holds for a job."""


def _served(each: FlaggedKey) -> FlaggedKey:
    default = _DEFAULTS.get(each.key, each.flag.default)
    return replace(each, flag=replace(each.flag, default=default))


_KEYS = [
    _served(each)
    for each in (*KEYS, *RUN_KEYS)
    if each.key.rpartition(".")[0] in _SECTIONS and each.key not in _PER_JOB
]
_Keys = options_of("_Keys", _KEYS)

_PACKAGES = ("starlette", "uvicorn", "python-multipart")

_address = functools.partial(option, "Address")
_bounds = functools.partial(option, "Bounds")
_batches = functools.partial(option, "Batches")


@dataclass(frozen=True)
class ServeOptions(_Keys):  # type: ignore[valid-type, misc]  # made of declarations
    """The model, where it runs, where it is reached, and what is taken from clients."""

    set: Annotated[
        list[str] | None,
        option(
            "Model",
            "--set",
            "What stands where a request says nothing, as sampling.temperature=0.7, or another "
            "key of a recipe, as chat.template=FILE (repeatable).",
            "KEY=VALUE",
        ),
    ] = None
    name: Annotated[
        str | None,
        _address(
            "--served-model-name",
            "What clients call the model.",
            "NAME",
            default="its hub id, or its folder's name",
        ),
    ] = None
    host: Annotated[
        str, _address("--host", "The address to listen on.", "HOST", default="127.0.0.1")
    ] = "127.0.0.1"
    port: Annotated[
        int,
        _address("--port", "The port; 0 takes a free one.", "N", default="8000", min=0, max=65535),
    ] = 8000
    api_key: Annotated[
        str | None,
        _address(
            "--api-key",
            "What clients have to bring; better in the environment, where other users' `ps` does "
            "not show it.",
            "KEY",
            default="none; an address beyond this machine takes one",
            envvar="SHAREGEN_API_KEY",
            show_envvar=True,
        ),
    ] = None
    insecure: Annotated[
        bool,
        _address("--insecure", "Let whoever reaches an address beyond this machine ask it."),
    ] = False
    http_processes: Annotated[
        int | None,
        _address(
            "--http-processes",
            "Processes of HTTP, JSON and tokenising beside the one with the engines; 0: it does "
            "all.",
            "N",
            default="a quarter of the cores, 4 at most, with a GPU and 8 cores or more; else 0",
            min=0,
            max=64,
        ),
    ] = None
    max_body: Annotated[
        Any,
        _bounds(
            "--max-body", "Bytes of a request's body.", "SIZE", default="16MiB", parser=parse_size
        ),
    ] = "16MiB"
    max_headers: Annotated[
        Any,
        _bounds(
            "--max-headers",
            "Bytes of a request's headers.",
            "SIZE",
            default="64KiB",
            parser=parse_size,
        ),
    ] = "64KiB"
    max_requests: Annotated[
        int,
        _bounds(
            "--max-requests", "Requests that wait or run together.", "N", default="8192", min=1
        ),
    ] = 8192
    max_choices: Annotated[
        int,
        _bounds(
            "--max-choices",
            "Choices of a request: its prompts times n.",
            "N",
            default="1024",
            min=1,
        ),
    ] = 1024
    max_output_tokens: Annotated[
        int | None,
        _bounds(
            "--max-output-tokens",
            "Tokens of a choice.",
            "N",
            default="what the context has room for",
            min=1,
        ),
    ] = None
    max_connections: Annotated[
        int,
        _bounds(
            "--max-connections", "Connections that are open together.", "N", default="8192", min=1
        ),
    ] = 8192
    client_timeout: Annotated[
        float,
        _bounds(
            "--client-timeout",
            "Seconds that a client may take to send a request, or to take any of its answer.",
            "SECONDS",
            default="60",
            min=0.1,
        ),
    ] = 60.0
    grace: Annotated[
        float,
        _bounds(
            "--grace",
            "Seconds that requests have to finish after SIGTERM or Ctrl-C; a second one ends "
            "them at once.",
            "SECONDS",
            default="30",
            min=0.0,
        ),
    ] = 30.0

    batch_folder: Annotated[
        Path | None,
        _batches(
            "--batch-folder",
            "Answer /v1/files and /v1/batches, and keep files and answers in this folder; a "
            "server that begins again with it goes on.",
            "FOLDER",
            default="none: no file is kept",
            parser=parse_path,
        ),
    ] = None
    max_file: Annotated[
        Any,
        _batches(
            "--max-file",
            "Bytes of a file that is uploaded.",
            "SIZE",
            default="200MiB",
            parser=parse_size,
        ),
    ] = "200MiB"
    max_storage: Annotated[
        Any,
        _batches(
            "--max-storage",
            "Bytes in the folder, from which no more is taken.",
            "SIZE",
            default="16GiB",
            parser=parse_size,
        ),
    ] = "16GiB"
    max_batch_requests: Annotated[
        int,
        _batches("--max-batch-requests", "Requests of a batch.", "N", default="50000", min=1),
    ] = 50_000
    max_batches: Annotated[
        int,
        _batches("--max-batches", "Batches that are not finished.", "N", default="64", min=1),
    ] = 64

    weights_folder: Annotated[
        Path | None,
        option(
            "Training",
            "--weights-folder",
            "Let a trainer pause the server, and change its weights to those of a folder below "
            "this one.",
            "FOLDER",
            default="none: nobody may",
            parser=parse_path,
        ),
    ] = None


@with_options
def serve(options: ServeOptions) -> None:
    """Answer OpenAI's requests: an endpoint for one's own batch clients.

    Requests share what their prompts have in common as they come, with those that run and those
    that have finished. The base URL is printed when the first can be asked. For a job whose prompts
    are all known, `sharegen run batch` is the better way: it loses nothing when it is interrupted.

    \b
    Examples:
      sharegen serve --model Qwen/Qwen3-0.6B
      sharegen serve --model ./model --port 9000 --set sampling.temperature=0.7
      sharegen serve --model ./model --batch-folder batches
      SHAREGEN_API_KEY=secret sharegen serve --model ./model --host 0.0.0.0
    """
    missing = [name for name in _PACKAGES if find_spec(name.replace("-", "_")) is None]
    if missing:
        raise UsageError(f"serve needs {' and '.join(missing)}: {install('serve')}")
    from sharegen.common.mappings import merge
    from sharegen.serve.limits import Limits
    from sharegen.serve.server import Address
    from sharegen.serve.server import serve as run
    from sharegen.workload.configuration import resolve

    values = given(said_by(options))
    for assignment in options.set or ():
        values = merge(values, assigned(assignment))
    limits = Limits(
        body=options.max_body,
        headers=options.max_headers,
        requests=options.max_requests,
        choices=options.max_choices,
        output_tokens=options.max_output_tokens,
        connections=options.max_connections,
        client_seconds=options.client_timeout,
        grace=options.grace,
        file=options.max_file,
        storage=options.max_storage,
        batch_requests=options.max_batch_requests,
        batches=options.max_batches,
    )
    address = Address(options.host, options.port, options.api_key, options.insecure)
    configuration = resolve("batch", flags=values, has_rows=False)
    names = _names(options.name, values["model"])
    run(
        configuration, address, limits, names, _ready, options.http_processes,
        options.batch_folder, options.weights_folder,
    )  # fmt: skip


def _names(name: str | None, model: str) -> tuple[str, ...]:
    """What clients call the model: as they are told, else by its hub id or its folder's name."""
    if name is not None:
        return (name,)
    folder = Path(model).expanduser()
    return (folder.resolve().name, model) if folder.exists() else (model,)


def _ready(name: str, url: str) -> None:
    print(url, flush=True)
    complain(f"{name} is served; Ctrl-C ends it")
