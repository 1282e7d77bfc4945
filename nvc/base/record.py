"""Frozen value types with strict decoding, without the start-up cost of ``dataclasses``.

The hook and ``configure`` run once for every container and pay for their imports each time: ``dataclasses`` (through
``inspect``, ``re`` and ``enum``) costs more than twice a bare interpreter start. A ``Record`` subclass is declared like
a frozen dataclass and type checkers treat it as one; at run time it costs one small class. ``from_data`` decodes all
input from outside (a helper process, the inventory file, a machine description): the result is a Record, or an error
that names the field.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, ClassVar, Self, dataclass_transform
else:

    def dataclass_transform(**_: object):
        return lambda cls: cls


class DecodeError(ValueError):
    """Data does not have the shape of the Record it was decoded as; the message names the field."""


_ATOMS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "None": (type(None),),
}
#: Types whose values are data as they are.
_PLAIN = frozenset((str, int, float, bool, type(None)))


@dataclass_transform(frozen_default=True, eq_default=True)
class _RecordMeta(type):
    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        own = {
            field: text
            for field, text in namespace.get("__annotations__", {}).items()
            if not field.startswith("_") and not str(text).startswith("ClassVar")
        }
        defaults = {field: namespace.pop(field) for field in own if field in namespace}
        fields: dict[str, str] = {}
        inherited: dict[str, Any] = {}
        for base in reversed(bases):
            fields.update(getattr(base, "_fields", {}))
            inherited.update(getattr(base, "_defaults", {}))
        fields.update(own)
        inherited.update(defaults)
        namespace["__slots__"] = tuple(own)
        namespace["_fields"] = fields
        namespace["_defaults"] = inherited
        return super().__new__(mcls, name, bases, namespace)


class Record(metaclass=_RecordMeta):
    """Base of all frozen values.

    Fields are the annotated names, in order; a default is the value assigned in the class body. Only ``str``,
    ``int``, ``float``, ``bool``, ``None``, other Records, ``tuple[X, ...]``, ``dict[str, X]`` and ``X | Y`` of
    these may be annotated, which is also what JSON can carry. An annotation means what its name (or ``module.name``)
    means in the globals of the module of the class that declares the field. A name that this module imports for type
    checkers only is declared in ``_modules``: name to module, which is imported when a value is decoded.
    """

    if TYPE_CHECKING:
        _fields: ClassVar[dict[str, str]]
        _defaults: ClassVar[dict[str, Any]]
    _modules: ClassVar[dict[str, str]] = {}

    def __init__(self, *values: Any, **named: Any) -> None:
        fields = self._fields
        put = object.__setattr__
        if len(values) == len(fields) and not named:
            # All that is decoded comes here: map calls faster than a loop's body does.
            for _ in map(put, (self,) * len(fields), fields, values):
                pass
            return
        if len(values) > len(fields):
            raise TypeError(f"{type(self).__name__} takes {len(fields)} values, got {len(values)}")
        for field, value in zip(fields, values, strict=False):
            if field in named:
                raise TypeError(f"{type(self).__name__} got {field} twice")
            put(self, field, value)
        for field in list(fields)[len(values) :]:
            if field in named:
                put(self, field, named.pop(field))
            elif field in self._defaults:
                put(self, field, self._defaults[field])
            else:
                raise TypeError(f"{type(self).__name__} needs {field}")
        if named:
            raise TypeError(f"{type(self).__name__} has no field {next(iter(named))}")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, field) for field in self._fields)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash((type(self).__name__, self._values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{f}={getattr(self, f)!r}' for f in self._fields)})"

    def replace(self, **changes: Any) -> Self:
        """A copy with the named fields changed."""
        return type(self)(**{**{f: getattr(self, f) for f in self._fields}, **changes})

    def as_data(self) -> dict[str, Any]:
        """The value as JSON-ready data: dict of str to str, int, float, bool, None, list and dict."""
        found = {}
        for field in self._fields:
            value = getattr(self, field)
            found[field] = value if type(value) in _PLAIN else _to_data(value)
        return found

    @classmethod
    def from_data(cls, data: object) -> Self:
        """Decode ``data`` (from JSON) strictly.

        Raises DecodeError for a missing or unknown field, or a value of another type; nothing is converted. Raises
        TypeError for a class with an annotation that cannot be decoded.
        """
        try:
            value: Self = _decode_record(cls, data)
        except Invalid as invalid:
            raise DecodeError(f"{cls.__name__}{invalid}") from None
        return value


def _to_data(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Record):
        return value.as_data()
    if isinstance(value, tuple | list):
        return [item if type(item) in _PLAIN else _to_data(item) for item in value]
    if isinstance(value, dict):
        return {key: item if type(item) in _PLAIN else _to_data(item) for key, item in value.items()}
    return value


class Invalid(Exception):
    """A value that does not match its annotation. The place is put together while the exception propagates: a value
    that matches costs nothing for it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason, self.place = reason, ""

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"

    def at(self, step: str) -> Self:
        """The same, one step (``.field`` or ``[index]``) further down in the document."""
        self.place = step + self.place
        return self


#: In place of a default: the field has none.
REQUIRED: Any = object()
#: How a class is decoded: each field, its decoder, and its default or REQUIRED.
_plans: dict[Any, tuple[tuple[str, Callable[[Any], Any], Any], ...]] = {}
#: The decoders of atoms and of lists of them. A class's name can mean another class in another module.
_decoders: dict[str, Callable[[Any], Any]] = {}


def prepare() -> None:
    """Build the decoders of all classes that exist; otherwise each is built when it is used first."""
    classes: list[Any] = Record.__subclasses__()
    for cls in classes:
        classes += cls.__subclasses__()
        try:
            _plan(cls)
        except TypeError:
            continue  # a class that is never decoded may have any annotation


def _plan(cls: Any) -> tuple[tuple[str, Callable[[Any], Any], Any], ...]:
    defaults, own = cls._defaults, cls.__slots__
    plan = tuple(
        [
            (field, _decoder(text, cls if field in own else _declaring(cls, field)), defaults.get(field, REQUIRED))
            for field, text in cls._fields.items()
        ]
    )
    _plans[cls] = plan
    return plan


def _declaring(cls: Any, field: str) -> Any:
    return next(base for base in cls.__mro__ if field in base.__slots__)


def _decode_record(cls: Any, data: object) -> Any:
    if not isinstance(data, dict):
        raise Invalid(f"expected an object, got {type(data).__name__}")
    if not data.keys() <= cls._fields.keys():
        raise Invalid(f"unknown field {next(key for key in data if key not in cls._fields)!r}")
    values = []
    for field, decode, default in _plans.get(cls) or _plan(cls):
        if field in data:
            try:
                values.append(decode(data[field]))
            except Invalid as invalid:
                raise invalid.at(f".{field}") from None
        elif default is REQUIRED:
            raise Invalid(f"missing field {field!r}")
        else:
            values.append(default)
    return cls(*values)


def _decoder(annotation: str, owner: Any) -> Callable[[Any], Any]:
    """owner: the class that declares the field."""
    return _decoders.get(annotation) or _build_decoder(annotation, owner)


def _split(text: str, separator: str) -> Iterator[str]:
    depth, start = 0, 0
    for index, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == separator and depth == 0:
            yield text[start:index].strip()
            start = index + 1
    yield text[start:].strip()


def _build_decoder(annotation: str, owner: Any) -> Callable[[Any], Any]:
    # Looking at each character costs a start as much as all decoding: only where there is something to split.
    choices = list(_split(annotation, "|")) if "|" in annotation else ()
    if len(choices) > 1:
        return _union([_decoder(choice, owner) for choice in choices])
    if annotation in _ATOMS:
        found = _decoders[annotation] = _atom(annotation)
        return found
    if annotation.startswith("tuple[") and annotation.endswith(", ...]"):
        item = annotation[6:-6]
        found = _sequence(_decoder(item, owner))
        if item in _ATOMS:
            _decoders[annotation] = found
        return found
    if annotation.startswith("tuple[") and annotation.endswith("]"):
        return _fixed([_decoder(part, owner) for part in _split(annotation[6:-1], ",")])
    if annotation.startswith("dict[str,") and annotation.endswith("]"):
        return _mapping(_decoder(annotation[9:-1].strip(), owner))
    cls = _record_class(annotation, owner)
    return lambda data: _decode_record(cls, data)


def _record_class(annotation: str, owner: Any) -> Any:
    """The Record that a name means in the module of the class that declares the field. Raises TypeError."""
    name, *rest = annotation.split(".")
    try:
        if name in owner._modules:
            found = getattr(__import__(owner._modules[name], fromlist=[name]), name, None)
        else:
            found = getattr(sys.modules[owner.__module__], name, None)
    except (ImportError, KeyError):  # a class that outlives its module
        found = None
    for part in rest:
        found = getattr(found, part, None)
    if not isinstance(found, _RecordMeta):
        raise TypeError(f"{owner.__module__}.{owner.__qualname__}: a Record field cannot be annotated {annotation!r}")
    return found


def _atom(name: str) -> Callable[[Any], Any]:
    kinds, first = _ATOMS[name], _ATOMS[name][0]

    def decode(data: Any) -> Any:
        if type(data) is first:
            return data
        if not isinstance(data, kinds) or (isinstance(data, bool) and name != "bool"):
            raise Invalid(f"expected {name}, got {type(data).__name__}")
        return data

    return decode


def _items(decoders: Iterable[Callable[[Any], Any]], data: Any) -> tuple[Any, ...]:
    values: list[Any] = []
    try:
        for decode, item in zip(decoders, data, strict=False):
            values.append(decode(item))
    except Invalid as invalid:
        raise invalid.at(f"[{len(values)}]") from None
    return tuple(values)


def _sequence(item: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decode(data: Any) -> Any:
        if not isinstance(data, list | tuple):
            raise Invalid(f"expected a list, got {type(data).__name__}")
        return _items([item] * len(data), data)

    return decode


def _fixed(items: list[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def decode(data: Any) -> Any:
        if not isinstance(data, list | tuple) or len(data) != len(items):
            raise Invalid(f"expected a list of {len(items)}")
        return _items(items, data)

    return decode


def _mapping(item: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decode(data: Any) -> Any:
        if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
            raise Invalid("expected an object")
        found = {}
        for key, value in data.items():
            try:
                found[key] = item(value)
            except Invalid as invalid:
                raise invalid.at(f".{key}") from None
        return found

    return decode


def _union(choices: list[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def decode(data: Any) -> Any:
        problem: Invalid | None = None
        for choice in choices:
            try:
                return choice(data)
            except Invalid as invalid:
                # The choice that looked furthest into the data has the message worth reading.
                if problem is None or len(str(invalid)) > len(str(problem)):
                    problem = invalid
        assert problem is not None  # there are two choices at least
        raise problem

    return decode
