"""The GNU getopt_long and argp grammar, driven by option rows.

The command line of nvidia-container-cli is argp's, and scripts depend on its details: options of the program end at
the first word that is none (the command); options of a command may follow or precede its arguments; ``--`` ends them;
long options may be shortened while they are unique and take ``--name=value`` or ``--name value``; short ones may be
clustered; an optional value must be attached. Error texts are glibc's.
"""

from __future__ import annotations

from nvc.base.errors import UsageError
from nvc.base.nearest import did_you_mean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: The program whose grammar this is.
REFERENCE = "nvidia-container-cli"
#: Destinations of options that end parsing where they stand: what they show does not depend on what follows.
ACTIONS = ("help", "usage", "version", "completion")


class Option:
    """One option: a row of ``nvc.cli.options``.

    long, short: without dashes; short may be "". metavar: name of the value, "" if there is none.
    destination: where values go; several options may share one, and one that ends in "_options" collects
    names of options (libnvidia-container.md 2.2.1). optional: the value may be left out. repeatable: all values count,
    not the last.
    choices: the values there are, for help and completion. extra: not an option of nvidia-container-cli; it does
    not make a shortened name of one of those ambiguous.
    """

    __slots__ = ("choices", "destination", "extra", "help", "long", "metavar", "optional", "repeatable", "short")

    def __init__(
        self,
        long: str,
        short: str,
        metavar: str,
        help: str,
        destination: str = "",
        *,
        optional: bool = False,
        repeatable: bool = False,
        choices: tuple[str, ...] = (),
        extra: bool = False,
    ) -> None:
        self.long = long
        self.short = short
        self.metavar = metavar
        self.help = help
        self.destination = destination or long.replace("-", "_")
        self.optional = optional
        self.repeatable = repeatable
        self.choices = choices
        self.extra = extra

    def letters(self, program: str) -> tuple[str, ...]:
        """Its short names in ``program``: -h is an error of nvidia-container-cli, which scripts may count on."""
        return (self.short, "h") if self.long == "help" and not program.startswith(REFERENCE) else (self.short,)

    def name(self, value: str | None) -> str:
        """The option as the library names it, with its value if it has one."""
        return self.long if value is None else f"{self.long}={value}"


class ArgumentError(UsageError):
    """Words that do not follow the grammar.

    program: the name the message starts with. usage: the lines that follow it; "": those of the option rows.
    """

    def __init__(self, program: str, message: str, *, hint: str = "", usage: str = "") -> None:
        super().__init__(message, hint=hint)
        self.program = program
        self.usage = usage


class UnknownOption(ArgumentError):
    """A long option that is in no row. option: without its value."""

    def __init__(self, program: str, word: str, hint: str) -> None:
        super().__init__(program, f"unrecognized option '{word}'", hint=hint)
        self.option = word.partition("=")[0]


class Parsed:
    """What was on a command line.

    events: options with their values (None: none given), in order. operands: the other words.
    rest: with ``in_order``, everything from the first operand on, untouched. action: destination of the option
    that ended parsing, or "".
    """

    __slots__ = ("action", "events", "operands", "rest")

    def __init__(self) -> None:
        self.events: list[tuple[Option, str | None]] = []
        self.operands: list[str] = []
        self.rest: list[str] = []
        self.action = ""

    def has(self, destination: str) -> bool:
        return any(option.destination == destination for option, _ in self.events)

    def last(self, destination: str) -> str | None:
        """The value that counts: the last one given; None if there is none."""
        values = self.all(destination)
        return values[-1] if values else None

    def is_bare(self, destination: str) -> bool:
        """Whether the option was given last without its optional value: ``--user``, and not ``--user=``."""
        values = [value for option, value in self.events if option.destination == destination]
        return bool(values) and values[-1] is None

    def all(self, destination: str) -> list[str]:
        """Every value given, in order; an optional value that was left out is ""."""
        return [value or "" for option, value in self.events if option.destination == destination]

    def names(self, destination: str) -> list[str]:
        """The options of this destination by the library's names, in order, each once."""
        found = (option.name(value) for option, value in self.events if option.destination == destination)
        return list(dict.fromkeys(found))


def parse(program: str, arguments: Sequence[str], options: Sequence[Option], *, in_order: bool) -> Parsed:
    """Read ``arguments`` (without the program's name).

    in_order: stop at the first operand, instead of reading options after it. Raises ArgumentError.
    """
    parsed = Parsed()
    position = 0
    while position < len(arguments) and not parsed.action:
        word = arguments[position]
        position += 1
        if word == "--":
            parsed.operands.extend(arguments[position:])
            parsed.rest = list(arguments[position:])
            break
        if word.startswith("--"):
            position = _long(program, arguments, position, options, parsed)
        elif word.startswith("-") and word != "-":
            position = _cluster(program, arguments, position, options, parsed)
        elif in_order:
            parsed.operands.append(word)
            parsed.rest = list(arguments[position - 1 :])
            break
        else:
            parsed.operands.append(word)
    return parsed


def _add(parsed: Parsed, option: Option, value: str | None) -> None:
    parsed.events.append((option, value))
    if option.destination in ACTIONS:
        parsed.action = option.destination


def _long(program: str, arguments: Sequence[str], position: int, options: Sequence[Option], parsed: Parsed) -> int:
    """One ``--option``, the word before ``position``; the position after it and its value."""
    word = arguments[position - 1]
    name, attached, value = word[2:].partition("=")
    option = _find(program, word, name, options)
    if not option.metavar:
        if attached:
            raise ArgumentError(program, f"option '--{option.long}' doesn't allow an argument")
        _add(parsed, option, None)
    elif attached:
        _add(parsed, option, value)
    elif option.optional:
        _add(parsed, option, None)
    elif position < len(arguments):
        _add(parsed, option, arguments[position])
        return position + 1
    else:
        raise ArgumentError(program, f"option '--{option.long}' requires an argument")
    return position


def _find(program: str, word: str, name: str, options: Sequence[Option]) -> Option:
    for option in options:
        if option.long == name:
            return option
    candidates = [option for option in options if option.long.startswith(name)]
    candidates = [option for option in candidates if not option.extra] or candidates
    if not candidates:
        hint = did_you_mean(name, (option.long for option in options), shown="--{}")
        raise UnknownOption(program, word, hint)
    if len(candidates) > 1:
        names = "".join(f" '--{option.long}'" for option in candidates)
        raise ArgumentError(program, f"option '{word}' is ambiguous; possibilities:{names}")
    return candidates[0]


def _cluster(program: str, arguments: Sequence[str], position: int, options: Sequence[Option], parsed: Parsed) -> int:
    """One ``-abc``, the word before ``position``; the position after it and its value."""
    letters = arguments[position - 1][1:]
    while letters and not parsed.action:
        letter, letters = letters[0], letters[1:]
        option = next((option for option in options if letter in option.letters(program)), None)
        if option is None:
            raise ArgumentError(program, f"invalid option -- '{letter}'")
        if not option.metavar:
            _add(parsed, option, None)
        elif letters or option.optional:
            _add(parsed, option, letters or None)
            break
        elif position < len(arguments):
            _add(parsed, option, arguments[position])
            return position + 1
        else:
            raise ArgumentError(program, f"option requires an argument -- '{letter}'")
    return position
