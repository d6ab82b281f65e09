"""What a user can set, declared once: type, range, default, description and flag.

Each group is a frozen dataclass whose fields carry a `Parameter`. The surfaces inherit it or read
it: sections of recipes (pydantic), flags (Typer), SamplingParams and EngineConfig, and the pages.
Nothing here imports pydantic or Typer, so that the commands start fast.
"""
