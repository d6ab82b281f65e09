"""Compiling as dynamo sees it; and how many comparisons with a reference were left to a tie."""

import pytest
import torch


@pytest.fixture
def dynamo_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules are compiled without inductor, which takes long: their graphs run as they are."""
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda *of, **how: compile(*of, backend="eager", **how))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    passed = terminalreporter.stats.get("passed", [])
    ties = [value for test in passed for name, value in test.user_properties if name == "ties"]
    if ties:
        terminalreporter.write_line(
            f"{len(ties)} comparisons with a reference, {sum(ties)} samples or prompts "
            "differ by a tie"
        )
