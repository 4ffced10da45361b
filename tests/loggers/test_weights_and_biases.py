from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minerva.loggers import LoggerList, WandbLogger, open_wandb

CONFIG = {"gamma": 0.99, "policy_layer_sizes": [64, 64]}
NO_LOGIN = {
    "WANDB_API_KEY",
    "WANDB_IDENTITY_TOKEN_FILE",
    "WANDB_BASE_URL",
    "WANDB_MODE",
    "WANDB_RUN_ID",
    "WANDB_SILENT",
}


@pytest.fixture(autouse=True)
def _nobody_is_logged_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NO_LOGIN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "wandb-config"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "wandb-cache"))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "wandb-data"))


def records(file: Path) -> Iterator[Any]:
    """Read a .wandb file: a seven-byte header, then records in LevelDB's log format, in blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    data = file.read_bytes()
    at, parts = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:  # too short for a record header: the block is padded
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(parts)
            parts = b""


def history(file: Path) -> list[dict[str, float]]:
    return [
        {
            (item.key or "/".join(item.nested_key)): json.loads(item.value_json)
            for item in record.history.item
            if not (item.key or item.nested_key[0]).startswith("_")
        }
        for record in records(file)
        if record.WhichOneof("record_type") == "history"
    ]


def test_an_offline_run_reads_back_and_is_resumed_with_its_id(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    logger = open_wandb("offline", folder, "minerva-test", "a name", CONFIG)
    assert logger is not None
    logger.log({"charts/SPS": 1000.0, "eval/return_mean": -1.5}, 0)
    logger.log({"charts/SPS": 1500.0}, 2048)
    logger.flush()
    logger.close()
    logger.close()
    run_id = (folder / "wandb_id.txt").read_text().strip()
    (file,) = folder.glob(f"wandb/offline-run-*-{run_id}/run-{run_id}.wandb")
    expected = [
        {"charts/SPS": 1000.0, "eval/return_mean": -1.5, "global_step": 0},
        {"charts/SPS": 1500.0, "global_step": 2048},
    ]
    # W&B's own process writes the file; on a busy machine it may finish shortly after the run was closed.
    deadline = time.monotonic() + 30
    while history(file) != expected and time.monotonic() < deadline:
        time.sleep(0.1)
    assert history(file) == expected
    (start,) = [record.run for record in records(file) if record.WhichOneof("record_type") == "run"]
    assert (start.project, start.display_name, start.run_id) == ("minerva-test", "a name", run_id)
    assert {item.key: json.loads(item.value_json) for item in start.config.update}.items() >= CONFIG.items()
    axes = [record.metric for record in records(file) if record.WhichOneof("record_type") == "metric"]
    assert any(metric.glob_name == "*" and metric.step_metric == "global_step" for metric in axes)

    again = open_wandb("offline", folder, "minerva-test", "a name", CONFIG)
    assert again is not None
    again.close()
    assert {path.name.rpartition("-")[2] for path in folder.glob("wandb/offline-run-*")} == {run_id}
    assert (folder / "wandb_id.txt").read_text().strip() == run_id


def test_an_active_run_is_used_and_left_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[dict[str, float]] = []
    config: dict[str, Any] = {}
    active = SimpleNamespace(
        id="theirs",
        config=SimpleNamespace(update=lambda new, allow_val_change: config.update(new)),
        define_metric=lambda *_, **__: None,
        log=rows.append,
        finish=lambda: pytest.fail("finished a run that is not its own"),
    )
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=active))
    logger = open_wandb("offline", tmp_path, "p", "n", CONFIG)
    assert logger is not None
    logger.log({"a": 1.0}, 7)
    logger.close()
    assert rows == [{"a": 1.0, "global_step": 7}]
    assert config == CONFIG
    assert list(tmp_path.iterdir()) == []


def test_online_resumes_by_id_without_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    class Settings:
        def __init__(self, **fields: Any) -> None:
            self.fields = fields

    def init(**arguments: Any) -> Any:
        seen.update(arguments, stdin_is_terminal=sys.stdin.isatty())
        return SimpleNamespace(id=arguments["id"], define_metric=lambda *_, **__: None)

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=None, Settings=Settings, init=init))
    (tmp_path / "wandb_id.txt").write_text("kept\n")
    stdin = sys.stdin
    logger = open_wandb("online", tmp_path, "p", "n", CONFIG)
    assert sys.stdin is stdin
    assert logger is not None
    assert (seen["mode"], seen["id"], seen["resume"]) == ("online", "kept", "allow")
    assert seen["stdin_is_terminal"] is False
    assert seen["settings"].fields["init_timeout"] <= 30


def test_without_the_package_a_warning_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.warns(RuntimeWarning, match=r'W&B is not installed.*"minerva-rl\[tracking\]"') as caught:
        assert open_wandb("online", tmp_path, "p", "n", CONFIG) is None
    assert len(caught) == 1


ONLINE = (
    "import sys\n"
    "from pathlib import Path\n"
    "import minerva.loggers.weights_and_biases as module\n"
    "module._START_SECONDS = 3.0\n"
    "assert module.open_wandb('online', Path(sys.argv[1]), 'p', 'n', {}) is None\n"
    "print('the run continues')\n"
)


def test_without_a_login_there_is_no_prompt(tmp_path: Path) -> None:
    """At a real terminal, where W&B would ask and wait."""
    main, worker = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", ONLINE, str(tmp_path / "run")],
        stdin=worker,
        stdout=worker,
        stderr=worker,
        close_fds=True,
    )
    os.close(worker)
    chunks: list[bytes] = []

    def drain() -> None:
        try:
            while chunk := os.read(main, 65536):
                chunks.append(chunk)
        except OSError:  # the terminal's other end is closed
            pass

    thread = threading.Thread(target=drain)
    thread.start()
    try:
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        thread.join()
        os.close(main)
    said = b"".join(chunks).decode()
    assert said.count("RuntimeWarning: W&B could not be started") == 1
    assert "Run `wandb login`" in said
    assert "the run continues" in said
    assert "Traceback" not in said


def test_without_a_network_the_run_continues(tmp_path: Path) -> None:
    # A port without a listener stands for a server that cannot be reached.
    env = os.environ | {"WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9"}
    command = [sys.executable, "-c", ONLINE, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=40, env=env, check=True)
    assert "the run continues" in done.stdout
    assert done.stderr.count("RuntimeWarning: W&B could not be started") == 1
    assert "Traceback" not in done.stderr


def test_a_failure_during_a_run_removes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def log(_: Any) -> None:
        raise ConnectionResetError("the service is gone")

    run = SimpleNamespace(id="x", log=log, finish=lambda: None)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=run))
    notes: list[str] = []
    loggers = LoggerList([WandbLogger(run)], note=notes.append)
    loggers.log({"a": 1.0}, 1)
    loggers.log({"a": 1.0}, 2)
    loggers.close()
    assert notes == [
        "WandbLogger failed and is disabled for the rest of the run: ConnectionResetError: the service is gone",
    ]


def test_standard_input_is_restored_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr(sys, "stdin", stdin := io.StringIO("typed"))
    module = SimpleNamespace(run=None, Settings=lambda **_: None, init=init)
    monkeypatch.setitem(sys.modules, "wandb", module)
    with pytest.warns(RuntimeWarning, match=r"W&B could not be started.*RuntimeError: no"):
        assert open_wandb("offline", tmp_path, "p", "n", CONFIG) is None
    assert sys.stdin is stdin
