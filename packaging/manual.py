"""Writes the manual pages, from the same rows and click commands that the command line is made from.

usage: PYTHONPATH=. python packaging/manual.py DIR [DOCUMENTS]      makes DIR/man1 and DIR/man8

DOCUMENTS: where docs/ will be, which the pages name.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
from commands import CHECKOUT, own_names

from hook import arguments, state, swarm
from hook import cdi_words as cdi
from nvc import __version__
from nvc.cli import help, options, reference
from nvc.cli.ctk import main as ctk_main
from nvc.cli.ctk import show
from nvc.cli.ctk.tree import ROOT
from nvc.cli.main import OUR_PROGRAM

Rows = Iterable[tuple[str, str]]

_SEE_ALSO = "The directory {} has more, a page for each engine among it."
_DOCUMENTS = "/usr/share/doc/nvc-py"
# groff turns these into typographic signs, which do not work when pasted into a shell.
_SIGNS = {"\\": "\\e", "-": "\\-", "'": "\\(aq", "`": "\\(ga", "^": "\\(ha", "~": "\\(ti"}


def escape(text: str) -> str:
    """Plain text for one line of roff."""
    safe = "".join(_SIGNS.get(sign, sign) for sign in text)
    return f"\\&{safe}" if safe.startswith(".") else safe


def prose(text: str) -> str:
    """One paragraph; what stands in backquotes is shown bold."""
    words = " ".join(text.split())
    return re.sub(r"\\\(ga(.*?)\\\(ga", r"\\fB\1\\fR", escape(words))


def block(lines: Iterable[str]) -> str:
    """Lines as they are: examples."""
    return "\n".join([".PP", ".RS 4", ".nf", *(escape(line) or ".sp" for line in lines), ".fi", ".RE"])


def paragraphs(text: str) -> Iterator[str]:
    """Help text as click has it: paragraphs, and with \\b before them, lines as they are."""
    for part in re.split(r"\n\s*\n", text.strip("\n")):
        lines = part.strip("\n").split("\n")
        if lines[0].strip() == "\b":
            shown = lines[1:]
            indent = min((len(line) - len(line.lstrip()) for line in shown if line.strip()), default=0)
            yield block(line[indent:] for line in shown)
        else:
            yield f".PP\n{prose(part)}"


def definitions(rows: Rows) -> Iterator[str]:
    """Options and the like: a term and what it means."""
    for term, text in rows:
        yield f".TP\n\\fB{escape(term.strip())}\\fR\n{prose(text)}"


def page(name: str, section: int, summary: str, synopsis: Iterable[str], parts: Iterable[str], also: str) -> str:
    """A whole page. ``parts`` come ready, headings included."""
    stamp = int(os.environ.get("SOURCE_DATE_EPOCH") or (CHECKOUT / "CHANGELOG.md").stat().st_mtime)
    day = time.strftime("%Y-%m-%d", time.gmtime(stamp))
    lines = [f'.TH {name.upper()} {section} {day} "nvc-py {__version__}"', ".SH NAME"]
    lines.append(f"{escape(name)} \\- {prose(summary.rstrip('.'))}")
    lines.append(".SH SYNOPSIS")
    for line in synopsis:
        program, _, rest = line.partition(" ")
        lines += [".PP", f"\\fB{escape(program)}\\fR {escape(rest)}".rstrip()]
    lines += [*parts, ".SH SEE ALSO", prose(also), ".PP", prose(_SEE_ALSO.format(_DOCUMENTS))]
    return "\n".join(lines) + "\n"


def commands() -> Iterator[tuple[str, str]]:
    """(file, text) of the page of nvc-py and of each of its commands."""
    program = help.program(OUR_PROGRAM)
    context = click.Context(program, info_name=OUR_PROGRAM)
    names = [f"{OUR_PROGRAM}-{name}" for name in options.SUMMARIES]
    text = [
        *_body(program, context),
        ".SH COMMANDS",
        *definitions((f"{name}(1)", options.SUMMARIES[name[len(OUR_PROGRAM) + 1 :]]) for name in names),
        *_examples(program),
        *_around(OUR_PROGRAM),
    ]
    summary = (program.help or "").partition("\n")[0]
    also = ", ".join([*(f"{name}(1)" for name in names), "nvc-hook(8)", "nvc-cdi-hook(8)", "nvc-runtime(8)"])
    yield f"{OUR_PROGRAM}.1", page(OUR_PROGRAM, 1, _lower(summary), [_synopsis(program, context)], text, also)
    for name in options.SUMMARIES:
        command = program.get_command(context, name)
        assert command is not None, name
        yield f"{OUR_PROGRAM}-{name}.1", _command(name, command, context)


def _command(name: str, command: click.Command, parent: click.Context) -> str:
    context = click.Context(command, info_name=name, parent=parent)
    parts = [*_body(command, context), *_examples(command)]
    synopsis = [_synopsis(command, context)]
    for path, child, inner in _below(command, context):
        synopsis.append(_synopsis(child, inner))
        parts += [f".SH {escape(path.upper())}", *_body(child, inner, heading="")]
    parts += _around(f"{OUR_PROGRAM} {name}")
    also = f"{OUR_PROGRAM}(1)" + (", nvc-cdi-hook(8)" if name in ("cdi", "cdi-hook") else "")
    return page(f"{OUR_PROGRAM}-{name}", 1, _lower(options.SUMMARIES[name]), synopsis, parts, also)


def _below(
    command: click.Command, context: click.Context, path: str = ""
) -> Iterator[tuple[str, click.Command, click.Context]]:
    """Every command of a group, also of the groups in it."""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None and not child.hidden:
                inner = click.Context(child, info_name=name, parent=context)
                yield f"{path} {name}".strip(), child, inner
                yield from _below(child, inner, f"{path} {name}")


def _synopsis(command: click.Command, context: click.Context) -> str:
    return " ".join([context.command_path, *command.collect_usage_pieces(context)])


def _body(command: click.Command, context: click.Context, heading: str = ".SH OPTIONS") -> Iterator[str]:
    """Description and options."""
    if heading:
        yield ".SH DESCRIPTION"
    yield from paragraphs(_dedent(command.help or ""))
    rows = [param.get_help_record(context) for param in command.get_params(context)]
    shown = [row for row in rows if row]
    if shown:
        yield heading or ".PP\nOptions:"
        yield from definitions(shown)


def _around(name: str) -> Iterator[str]:
    """ENVIRONMENT, FILES and EXIT STATUS of a program or command."""
    for heading, rows in (
        ("ENVIRONMENT", reference.environment(name)),
        ("FILES", reference.files(name)),
        ("EXIT STATUS", reference.exits(name)),
    ):
        if rows:
            yield f".SH {heading}"
            yield from definitions((term, _upper(meaning)) for term, meaning in rows)


def _examples(command: click.Command) -> Iterator[str]:
    """An epilog's first part is a heading and examples, all of it as it is; ``_around`` has the others."""
    heading, *lines = (command.epilog or "").replace("\b\n", "", 1).partition("\n\n")[0].split("\n")
    if heading == "Examples:":
        yield ".SH EXAMPLES"
        yield block(line.removeprefix("  ") for line in lines)


def _dedent(text: str) -> str:
    first, _, rest = text.partition("\n")
    indents = [len(line) - len(line.lstrip()) for line in rest.split("\n") if line.strip()]
    cut = min(indents, default=0)
    return "\n".join([first, *(line[cut:] for line in rest.split("\n"))])


def _lower(sentence: str) -> str:
    """A sentence as whatis(1) lists it; "CDI" stays."""
    return sentence if sentence[:2].isupper() else sentence[:1].lower() + sentence[1:]


def services() -> Iterator[tuple[str, str]]:
    """The programs that engines start, from their own tables."""
    yield "nvc-hook.8", _hook()
    yield f"{cdi.PROGRAM}.8", _cdi_hook()
    yield "nvc-runtime.8", _runtime()
    yield "nvidia-ctk.1", _ctk()


def _hook() -> str:
    stages = ", ".join((*state.OUTSIDE, *state.INSIDE))
    text = (
        "Gives a container that asks for NVIDIA GPUs what it needs to use them. The OCI runtime starts it and writes "
        "the container's state to its standard input. `nvc-py runtime configure` tells engines about it.\n\n"
        f"STAGE is one of {stages}. At {', '.join(state.IDLE)} it does nothing.\n\n"
        f"Under the names {', '.join(arguments.ALIASES)} it takes options also with one dash, and there `-debug` takes "
        "no value."
    )
    rows = ((f"--{name} {value}", _upper(meaning)) for name, value, meaning in arguments.OPTIONS)
    parts = [".SH DESCRIPTION", *paragraphs(text), ".SH OPTIONS", *definitions(rows)]
    parts += _around("nvc-hook")
    return page(
        "nvc-hook",
        8,
        "OCI hook that gives containers NVIDIA GPUs",
        ["nvc-hook [OPTION...] STAGE"],
        parts,
        "nvc-py(1), nvc-py-runtime(1), nvc-runtime(8)",
    )


def _cdi_hook() -> str:
    text = (
        "Hooks of CDI specs. The OCI runtime starts them at createContainer and writes the container's state to their "
        f"standard input. `nvc-py cdi generate` writes specs that name them. The word `{cdi.THEN}` stands between "
        "several hooks of one start.\n\n"
        f"As {cdi.CDI_HOOK} and `{cdi.CTK} hook` it reads its words as NVIDIA's program does: `--debug` and `--quiet` "
        "take no value, commas separate items, and `--container-spec` names a file with the state."
    )
    parts = [".SH DESCRIPTION", *paragraphs(text), ".SH HOOKS"]
    for name, (summary, values) in cdi.HOOKS.items():
        parts += definitions([(name, _upper(summary))])
        rows = ((f"--{option} {value}", _upper(meaning)) for option, value, meaning in values)
        parts += [".RS", *definitions(rows), ".RE"]
    rows = ((f"--{option} {value}", _upper(meaning)) for option, value, meaning in cdi.COMMON)
    parts += [".SH COMMON OPTIONS", *definitions(rows), *_around(cdi.PROGRAM)]
    synopsis = [f"{cdi.PROGRAM} NAME [OPTION...] [{cdi.THEN} NAME [OPTION...]]..."]
    return page(cdi.PROGRAM, 8, "hooks of CDI specs", synopsis, parts, "nvc-py-cdi(1)")


def _ctk() -> str:
    text = (
        f"The command of NVIDIA's container toolkit, with the commands and options of its version {ctk_main.ANSWERS}. "
        "What each does is done by nvc-py: `nvc-py runtime configure`, `nvc-py cdi` and the hooks of nvc-cdi-hook(8) "
        "do the same and more.\n\n"
        "An option has one dash or two; its value stands after `=` or is the next word. A variable of the environment "
        "counts where the option is not given."
    )
    parts = [".SH DESCRIPTION", *paragraphs(text)]
    synopsis = []
    for path, flags in show.rows(ROOT):
        name = " ".join(command.name for command in path)
        synopsis += [f"{name} [OPTION...]"] if path[-1].action or len(path) == 1 else []
        shown = [(show.written(flag), _upper(show.described(flag))) for flag in flags if not flag.hidden]
        if shown:
            parts += [f".SH {escape(name.upper())}", *paragraphs(f"{path[-1].help}."), *definitions(shown)]
    parts += _around("nvidia-ctk")
    return page(
        "nvidia-ctk",
        1,
        "configure container engines, CDI and device nodes for NVIDIA GPUs",
        synopsis,
        parts,
        "nvc-py(1), nvc-py-runtime(1), nvc-py-cdi(1), nvc-cdi-hook(8)",
    )


def _runtime() -> str:
    files = " or else ".join(f"`/etc/{name}`" for name in swarm.FILES)
    text = (
        "An OCI runtime for engines: it edits the config.json of a container that asks for NVIDIA GPUs, so that it "
        "gets them, and becomes the real runtime, which does the rest. Every word of its command line is passed on; "
        f"`--log`, `--log-format` and `--debug` are read as well.\n\nWhich runtime that is, and how containers get "
        f"their GPUs, stands in {files}. `nvc-py runtime configure` tells engines about this program.\n\n"
        "Under a name that ends in `.legacy` or `.cdi` it works in that mode, whatever the file says."
    )
    return page(
        "nvc-runtime",
        8,
        "OCI runtime that gives containers NVIDIA GPUs",
        ["nvc-runtime [OPTION...] COMMAND [ARG...]"],
        [".SH DESCRIPTION", *paragraphs(text), *_around("nvc-runtime")],
        "nvc-py(1), nvc-py-runtime(1), nvc-hook(8)",
    )


def _upper(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def main(directory: str, documents: str = _DOCUMENTS) -> int:
    usual, ours = (prose(_SEE_ALSO.format(place)) for place in (_DOCUMENTS, documents))
    pages = {name: text.replace(usual, ours) for name, text in (*commands(), *services())}
    sections = {name[:-2]: name[-1] for name in pages}
    for name, own in own_names().items():
        if name != own:
            pages[f"{name}.{sections[own]}"] = f".so man{sections[own]}/{own}.{sections[own]}\n"
    for name, text in pages.items():
        path = Path(directory, f"man{name[-1]}", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
