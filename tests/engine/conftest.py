"""Says at the end how many comparisons with a reference were left to a tie."""

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    passed = terminalreporter.stats.get("passed", [])
    ties = [value for test in passed for name, value in test.user_properties if name == "ties"]
    if ties:
        terminalreporter.write_line(
            f"{len(ties)} comparisons with a reference, {sum(ties)} samples or prompts "
            "differ by a tie"
        )
