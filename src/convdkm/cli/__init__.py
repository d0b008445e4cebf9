"""The command line, ``convdkm``."""

from __future__ import annotations

import codecs
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from convdkm.storage.text import legible, written_anyhow

if TYPE_CHECKING:
    import typer


def main() -> None:
    """Run the command line and end the program with its exit code."""
    codecs.register_error("convdkm", written_anyhow)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that knows no ν shows a question mark, and the run goes on.
        getattr(stream, "reconfigure", lambda **_: None)(errors="convdkm")
    threading.excepthook = _of_thread
    sys.exit(run(sys.argv[1:]))


def _of_thread(failure: threading.ExceptHookArgs) -> None:
    """Leave errors of writing in a thread, such as TensorBoard's, to the code that waits for it."""
    if not isinstance(failure.exc_value, OSError):
        threading.__excepthook__(failure)


def run(arguments: Sequence[str]) -> int:
    """Run one command; errors that a user can correct are a message, without a traceback."""
    import typer

    from convdkm.cli.app import build_app
    from convdkm.errors import ConvDKMError

    try:
        code = build_app()(list(arguments), prog_name="convdkm", standalone_mode=False)
    except typer.TyperException as error:
        return _fail(_usage(error, arguments), 2)
    except ConvDKMError as error:
        return _fail(str(error), 1)
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        return _fail(f"{error.strerror or error}{place}", 1)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", 130)
    except Exception as error:
        if not _is_out_of_memory(error):
            raise
        detail = (str(error).splitlines() or [type(error).__name__])[0]
        advice = "try --micro-batch 32, a smaller --batch-size or --evaluation-batch, or fewer"
        return _fail(f"out of memory; {advice} inducing points ({detail})", 1)
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int) -> int:
    print(f"Error: {legible(message)}", file=sys.stderr)
    return code


def _usage(error: typer.TyperException, arguments: Sequence[str]) -> str:
    """What is wrong with a command, and where its help is."""
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    command = context.command_path if context else " ".join(["convdkm", *arguments[:1]])
    return f"{message}{'' if message.endswith('?') else '.'} See `{command} --help`"


def _is_out_of_memory(error: Exception) -> bool:
    """Python's error, that of a GPU, or that of torch on the CPU, which has no type of its own."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
