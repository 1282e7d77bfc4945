"""Completion of nvidia-ctk's words in bash, zsh and fish.

The scripts call ``nvidia-ctk WORDS... --generate-shell-completion``, which prints what may stand next, a
``WORD:MEANING`` a line, as urfave/cli does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvc.cli.ctk.parse import known
from nvc.cli.ctk.tree import find

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nvc.cli.ctk.tree import Command

ASK = "--generate-shell-completion"
_BASH = """\
_nvidia_ctk() {
    local current=${COMP_WORDS[COMP_CWORD]} IFS=$'\\n'
    local -a asked=("${COMP_WORDS[@]:0:COMP_CWORD}")
    case $current in -*) asked+=("$current") ;; esac
    COMPREPLY=($(compgen -W "$("${asked[@]}" --generate-shell-completion 2>/dev/null | sed 's/:.*//')" -- "$current"))
}
complete -o bashdefault -o default -F _nvidia_ctk nvidia-ctk
"""
_ZSH = """\
#compdef nvidia-ctk
_nvidia-ctk() {
    local -a asked found
    asked=("${(@)words[1,CURRENT-1]}")
    [[ $words[CURRENT] == -* ]] && asked+=("$words[CURRENT]")
    found=("${(@f)$($asked --generate-shell-completion 2>/dev/null)}")
    if [[ -n $found[1] ]]; then _describe 'word' found; else _files; fi
}
if [[ $funcstack[1] == _nvidia-ctk ]]; then _nvidia-ctk "$@"; else compdef _nvidia-ctk nvidia-ctk; fi
"""
_FISH = """\
function __nvidia_ctk
    set -l asked (commandline -opc)
    string match -q -- '-*' (commandline -ct); and set -a asked (commandline -ct)
    $asked --generate-shell-completion 2>/dev/null | string replace ':' \\t
end
complete -c nvidia-ctk -a '(__nvidia_ctk)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def candidates(root: Command, words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(word, meaning) of what may stand after ``words``, the last of which may be the beginning of an option."""
    path: tuple[Command, ...] = (root,)
    for word in words:
        below = find(path[-1], word)
        path = (*path, below) if below is not None else path
    if words and words[-1].startswith("-"):
        for flag in known(path):
            option = f"--{flag.name}"
            if option.startswith(words[-1]) and not flag.hidden:
                yield option, flag.help
        return
    for command in path[-1].below:
        yield command.name, command.help
