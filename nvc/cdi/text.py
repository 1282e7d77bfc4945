"""The text of a spec: YAML or JSON, written the same way every time, read strictly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvc.base.errors import InputError

if TYPE_CHECKING:
    from typing import Any

    from nvc.cdi.spec import CdiSpec

FORMATS = ("yaml", "json")
#: File name endings that engines read, and their formats.
ENDINGS = {".yaml": "yaml", ".json": "json"}
#: A spec of eight GPUs has 60 KB. A root process reads no more than this.
SIZE_LIMIT = 8 << 20
#: Values in one file, aliases followed: a few lines of YAML can stand for more than fits into memory.
VALUES_LIMIT = 1 << 20


def write(spec: CdiSpec, form: str) -> str:
    """The text of ``spec``. form: one of FORMATS."""
    from nvc.cdi.spec import encode

    data = encode(spec)
    if form == "json":
        import json

        return json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    import yaml

    text: str = yaml.safe_dump(data, sort_keys=False, explicit_start=True, allow_unicode=True, width=1 << 20)
    return text


def read(data: bytes, form: str) -> Any:
    """The data in a text. Raises InputError: not text, wrong syntax (with the place), a key twice, too much."""
    if len(data) > SIZE_LIMIT:
        raise InputError(f"more than {SIZE_LIMIT >> 20} MiB")
    try:
        text = data.decode("utf-8")
        found = _json(text) if form == "json" else _yaml(text)
        _count(found)
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 (byte {error.start})") from error
    except RecursionError as error:
        raise InputError("nested too deep") from error
    except ValueError as error:
        raise InputError(str(error)) from error
    return found


def _json(text: str) -> Any:
    import json

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise ValueError(f"key {key!r} twice in one object")
            found[key] = value
        return found

    try:
        return json.loads(text, object_pairs_hook=table)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}: not JSON: {error.msg}") from error


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.load(text, Loader=_loader())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}: " if mark is not None else ""
        raise ValueError(f"{place}{error.problem or error.context or 'not YAML'}") from error
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {' '.join(str(error).split())}") from error


_made: Any = None


def _loader() -> Any:
    """YAML as Go's libraries read it: a key twice is an error, and ``0:1`` is a name, not 1 (YAML 1.1's base 60)."""
    global _made
    if _made is not None:
        return _made
    import re

    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers = {
            first: [(tag, pattern) for tag, pattern in pairs if tag.rpartition(":")[2] in ("null", "bool", "merge")]
            for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            self.flatten_mapping(node)
            seen = set()
            for key, _ in node.value:
                name = self.construct_object(key, deep=True)
                if not isinstance(name, str):
                    raise yaml.constructor.ConstructorError(None, None, f"key {name!r} is not a text", key.start_mark)
                if name in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"key {name!r} twice", key.start_mark)
                seen.add(name)
            found: dict[Any, Any] = super().construct_mapping(node, deep=deep)
            return found

    number = re.compile(r"^[-+]?(0|[1-9][0-9]*|0o?[0-7]+|0x[0-9a-fA-F]+)$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:int", number, list("-+0123456789"))
    _made = Loader
    return Loader


def _count(data: Any) -> None:
    left = VALUES_LIMIT
    stack = [data]
    while stack:
        item = stack.pop()
        left -= 1
        if left < 0:
            raise ValueError(f"more than {VALUES_LIMIT} values")
        if isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
