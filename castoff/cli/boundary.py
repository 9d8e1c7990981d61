"""The one place where errors become output and an exit code."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from castoff.core.console import Console
from castoff.core.errors import INTERNAL_EXIT_CODE, INTERRUPTED_EXIT_CODE, CastoffError, storage_error


@contextmanager
def boundary(console: Console, *, stopped: str = "stopped") -> Iterator[Console]:
    """Turn every error into output and an exit code."""
    try:
        yield console
    except CastoffError as error:
        console.error(error)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        console.warn(stopped)
        raise typer.Exit(INTERRUPTED_EXIT_CODE) from None
    except BrokenPipeError:
        # The reader of the output has closed it (head); Python must not write to it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(128 + signal.SIGPIPE) from None
    except OSError as error:
        known = storage_error(error)
        if known is None:
            _report_bug()
        console.error(known)
        raise typer.Exit(known.exit_code) from None
    except Exception:  # noqa: BLE001 - whatever is left is our own bug, and shown as one
        _report_bug()


def _report_bug() -> NoReturn:
    traceback.print_exc()
    print("This is a bug in castoff: please report it with the lines above.", file=sys.stderr)
    raise typer.Exit(INTERNAL_EXIT_CODE)
