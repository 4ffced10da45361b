from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Name the formulas that a failing test holds: they are what the code no longer computes."""
    report = yield
    if report.failed:
        for mark in item.iter_markers("formula"):
            module, *formulas = mark.args
            held = "\n".join(f"{module}: {latex}" for latex in formulas)
            report.sections.append(("formula held by this test", held))
    return report
