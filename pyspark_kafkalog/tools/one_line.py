"""What went wrong, as one line for sys.stderr."""

from __future__ import annotations


def one_line(error: BaseException) -> str:
    """The error's text without line breaks; of the system's errors the file and the reason, without the number."""
    if type(error) is not OSError and isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    else:
        text = str(error)
    return " ".join(text.split())
