"""JSON text to values and back, without the ``json`` package.

``import json`` pulls in ``re`` and ``enum`` and doubles the interpreter's start; the two C functions that do its work
cost nothing. What this adds to them: a size limit, an error with the place for everything that is wrong (also depth,
encoding, NaN and text after the value), and values of types JSON does not have are refused instead of converted.
Lone surrogates, which is how Python spells file names that are not UTF-8, survive the round trip.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

#: More than any inventory or plan needs; the reply for 16 GPUs with all files is below 256 KiB.
LIMIT = 8 << 20
_SPACE = " \t\n\r"


class CodecError(ValueError):
    """Text that is not the JSON it should be, or a value that JSON cannot carry.

    position: index of the offending character, or -1 when the error has no place.
    """

    def __init__(self, message: str, position: int = -1) -> None:
        super().__init__(message)
        self.position = position


def _refuse_value(value: object) -> NoReturn:
    raise CodecError(f"a {type(value).__name__} cannot be sent")


def _refuse_constant(name: str) -> NoReturn:
    raise CodecError(f"{name} is not JSON")


class _Rules:
    """The attributes that the scanner of ``json.decoder.JSONDecoder`` reads."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = staticmethod(_refuse_constant)


try:
    from _json import encode_basestring_ascii, make_encoder, make_scanner

    _scan: Callable[[str, int], tuple[Any, int]] = make_scanner(_Rules)  # type: ignore[arg-type] # any object with these attributes

    def _encode(value: object) -> tuple[str, ...]:
        # The last three: unsorted keys, no key skipped, NaN and infinity refused. The dict finds circles.
        encoder = make_encoder({}, _refuse_value, encode_basestring_ascii, None, ":", ",", False, False, False)
        chunks: tuple[str, ...] = encoder(value, 0)
        return chunks

except ImportError:  # an interpreter built without the accelerator
    import json

    _scan = json.JSONDecoder(parse_constant=_refuse_constant).scan_once  # type: ignore[attr-defined] # undocumented

    def _encode(value: object) -> tuple[str, ...]:
        text = json.dumps(value, default=_refuse_value, separators=(",", ":"), allow_nan=False)
        return (text,)


def dumps(value: object) -> bytes:
    """``value`` (dict, list, tuple, str, int, float, bool, None) as compact ASCII JSON.

    Raises CodecError for other types, circles, too much depth, NaN and infinity.
    """
    try:
        return "".join(_encode(value)).encode("ascii")
    except CodecError:
        raise
    except RecursionError as error:
        raise CodecError("nested too deeply") from error
    except (ValueError, TypeError) as error:
        raise CodecError(str(error)) from error


def loads(data: bytes | str, *, limit: int = LIMIT) -> Any:
    """The one value that ``data`` (UTF-8 when bytes) is the JSON text of.

    Raises CodecError, with line, column and position where there is a place.
    """
    if len(data) > limit:
        raise CodecError(f"{len(data)} bytes of JSON, more than the limit of {limit}")
    if isinstance(data, str):
        text = data
    else:
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CodecError(f"not UTF-8 at byte {error.start}", error.start) from error
    try:
        value, end = _scanned(text, _skip_space(text, 0))
    except StopIteration as stop:
        raise _misplaced("a value is missing", text, stop.value) from None
    except RecursionError as error:
        raise CodecError("nested too deeply") from error
    except CodecError:
        raise
    except ValueError as error:
        # json.JSONDecodeError, which the C scanner imports only when it needs it, or int()'s limit of 4300 digits.
        place = getattr(error, "pos", None)
        if place is None:
            raise CodecError(str(error)) from error
        raise _misplaced(str(getattr(error, "msg", error)).lower(), text, place) from error
    end = _skip_space(text, end)
    if end != len(text):
        raise _misplaced("more text after the value", text, end)
    return value


def _scanned(text: str, start: int) -> tuple[Any, int]:
    try:
        return _scan(text, start)
    except (SystemError, ImportError) as error:
        # Up to Python 3.12 the C scanner looks up the error class in sys.modules["json.decoder"], and raises a
        # SystemError when that is not imported (raise_errmsg() in Modules/_json.c). Only broken text needs the import,
        # which newer scanners try themselves.
        try:
            import json.decoder  # noqa: F401
        except ImportError:  # out of reach: in a chroot, or in a container's mount namespace
            raise CodecError("malformed") from error
    return _scan(text, start)


def _skip_space(text: str, start: int) -> int:
    while start < len(text) and text[start] in _SPACE:
        start += 1
    return start


def _misplaced(message: str, text: str, position: int) -> CodecError:
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    return CodecError(f"{message} at line {line} column {column}", position)
