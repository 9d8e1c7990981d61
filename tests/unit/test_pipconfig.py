import os
import subprocess
from pathlib import Path

from castoff.core.pipconfig import pip_settings, uv_environment
from castoff.core.tools import tool

LISTING = """WARNING: something
:env:.find-links='/a /b'
:env:.cert='/env.pem'
global.cert='/global.pem'
global.index-url='https://one.example/simple'
global.extra-index-url='https://two.example/simple\\nfile:///three'
install.trusted-host='two.example'
freeze.timeout='10'
"""


def test_settings_by_section() -> None:
    assert pip_settings(LISTING) == {
        "find-links": "/a /b",
        "cert": "/env.pem",
        "index-url": "https://one.example/simple",
        "extra-index-url": "https://two.example/simple\nfile:///three",
        "trusted-host": "two.example",
    }


def test_in_the_words_of_uv() -> None:
    environment = uv_environment(pip_settings(LISTING), {"HOME": "/h", "VIRTUAL_ENV": "/v"}, False)
    assert environment == {
        "HOME": "/h",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_NO_PROGRESS": "1",
        "SSL_CERT_FILE": "/env.pem",
        "UV_INSECURE_HOST": "two.example",
        "UV_DEFAULT_INDEX": "https://one.example/simple",
        "UV_INDEX": "https://two.example/simple file:///three",
        "UV_FIND_LINKS": "/a,/b",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }


def test_indexes_of_uv_stay_where_uv_is_configured() -> None:
    settings = pip_settings(LISTING)
    by_variable = uv_environment(settings, {"UV_INDEX_URL": "https://own.example"}, False)
    by_file = uv_environment(settings, {}, True)
    for environment in (by_variable, by_file):
        assert "UV_DEFAULT_INDEX" not in environment
        assert "UV_INDEX_STRATEGY" not in environment
        assert environment["SSL_CERT_FILE"] == "/env.pem"


def test_no_index_asks_no_network(tmp_path: Path) -> None:
    settings = {"no-index": "1", "index-url": "https://one.example/simple"}
    environment = uv_environment(settings, {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}, False)
    command = [tool("uv"), "pip", "install", "--dry-run", "--no-config", "--target", tmp_path / "t", "six"]
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 1
    assert "six was not found in the package registry" in completed.stderr
    assert uv_environment({"no-index": "0"}, {}, False).keys().isdisjoint({"UV_DEFAULT_INDEX", "UV_INDEX"})
