"""Errors of libraries and of the system in the words of a message."""

import os


def in_words(error: BaseException) -> str:
    """One line that says what is wrong, without the library's own wrapping: no errno, no class, no address again."""
    if (said := getattr(error, "verify_message", None)) is not None:  # ssl.SSLCertVerificationError
        return f"its certificate is not trusted: {said}"
    mark = getattr(error, "problem_mark", None)  # PyYAML's MarkedYAMLError
    if mark is not None:
        return f"line {mark.line + 1}: {getattr(error, 'problem', None) or 'it cannot be understood'}"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8 text"
    words = _of_the_system(error) if isinstance(error, OSError) else ""
    return words or " ".join(str(error).split()) or type(error).__name__


def _of_the_system(error: OSError) -> str:
    """The words of the operating system or of OpenSSL; empty if the error has none of theirs."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, OSError):  # urllib.error.URLError
        return in_words(reason)
    if reason:  # ssl.SSLError: its errno is its own
        return str(reason).replace("_", " ").lower()
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or ""


def host_port(address: str, port: int) -> str:
    """An address and port as people write them: `10.0.0.1:80` or `[fd00::1]:80`."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def with_path(error: BaseException) -> str:
    """The same, behind the path of the file that the system has refused, if there is one."""
    path = error.filename if isinstance(error, OSError) else None
    return in_words(error) if path is None else f"{os.fsdecode(path)}: {in_words(error)}"
