import pytest

from tests.annotate.programs import need


def test_a_missing_program_skips_locally_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    assert need("no-such-program", "sh").endswith("/sh")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs no-such-program or neither, which is not installed"):
        need("no-such-program", "neither")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="needs no-such-program"):
        need("no-such-program")
