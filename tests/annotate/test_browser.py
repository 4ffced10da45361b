from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.annotate.browser import chromium, served


def test_a_folder_is_served_on_this_machine(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<p>here</p>")
    with served(tmp_path) as address:
        assert address.startswith("http://127.0.0.1:")
        assert urlopen(f"{address}/page.html").read() == b"<p>here</p>"
    with pytest.raises(OSError):
        urlopen(f"{address}/page.html")


def test_the_driver_is_called_as_the_program_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("chromium", "chromium-driver"):  # the second is a package of Debian
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs chromedriver, which is not installed"), chromium():
        pass
