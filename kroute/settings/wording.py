"""Errors of libraries and of the system in the words of a message."""

import os


def in_words(error: BaseException) -> str:
    """One line that says what is wrong, without the library's own wrapping: no errno, no class, no address again."""
    if (said := getattr(error, "verify_message", None)) is not None:  # ssl.SSLCertVerificationError
        return f"its certificate is not trusted: {said}"
    if isinstance(error, OSError) and (reason := getattr(error, "reason", None)):  # ssl.SSLError: its errno is its own
        return str(reason).replace("_", " ").lower()
    mark = getattr(error, "problem_mark", None)  # PyYAML's MarkedYAMLError
    if mark is not None:
        return f"line {mark.line + 1}: {getattr(error, 'problem', None) or 'it cannot be understood'}"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__
