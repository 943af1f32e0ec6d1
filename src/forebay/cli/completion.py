"""`forebay completion bash|zsh|fish`: a script that completes commands, actions, options and their values."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import NamedTuple

_EPILOG = """examples:
  forebay completion bash > ~/.local/share/bash-completion/completions/forebay
  forebay completion zsh > ~/.zfunc/_forebay          # a folder of $fpath, before compinit
  forebay completion fish > ~/.config/fish/completions/forebay.fish"""


class _Option(NamedTuple):
    names: tuple[str, ...]
    help: str
    values: tuple[str, ...]
    takes_value: bool


class _Words(NamedTuple):
    """The possible continuations of `forebay PATH...`: words (commands, actions, values of an argument), with their
    help; options.
    """

    path: tuple[str, ...]
    words: dict[str, str]
    options: list[_Option]

    @property
    def option_names(self) -> list[str]:
        return [name for option in self.options for name in option.names]


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("shell", choices=sorted(_SHELLS), help="the shell")


def run(options: argparse.Namespace) -> int:
    from forebay.cli.main import whole_parser

    print(_SHELLS[options.shell](list(_walk(whole_parser(), ()))))
    return 0


def _walk(parser: argparse.ArgumentParser, path: tuple[str, ...]) -> Iterator[_Words]:
    words: dict[str, str] = {}
    options, inner = [], []
    for action in parser._actions:
        if action.help is argparse.SUPPRESS:
            continue
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            words |= {name: helps.get(name, "") for name in action.choices}
            inner = [*action.choices.items()]
        elif action.option_strings:
            values = tuple(map(str, action.choices or ()))
            help_text = " ".join((action.help or "").split()) % {**vars(action), "prog": "forebay"}
            options.append(_Option(tuple(action.option_strings), help_text, values, action.nargs != 0))
        else:
            words |= {str(value): "" for value in action.choices or ()}
    yield _Words(path, words, options)
    for name, sub in inner:
        yield from _walk(sub, (*path, name))


def _bash(commands: list[_Words]) -> str:
    words = "\n".join(
        f"        '{' '.join(each.path)}') words='{' '.join([*each.words, *each.option_names])}' ;;"
        for each in commands
    )
    values = {
        f"        '{' '.join(each.path)} {name}') values='{' '.join(option.values)}' ;;"
        for each in commands
        for option in each.options
        if option.takes_value
        for name in option.names
    }
    inner = " ".join(f"'{' '.join(each.path)}'" for each in commands if each.path)
    return f"""\
# bash completion of forebay; made by `forebay completion bash`
_forebay() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" path='' words='' values=none word
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        for known in {inner}; do
            [ "${{path:+$path }}$word" = "$known" ] && path="$known" && break
        done
    done
    case "$path $before" in
{chr(10).join(sorted(values))}
    esac
    if [ "$values" != none ]; then
        if [ -n "$values" ]; then COMPREPLY=($(compgen -W "$values" -- "$current"))
        else COMPREPLY=($(compgen -f -- "$current")); fi
        return
    fi
    case "$path" in
{words}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    [[ "$current" != -* ]] && COMPREPLY+=($(compgen -f -- "$current"))
}}
complete -F _forebay forebay"""


def _zsh(commands: list[_Words]) -> str:
    def described(items: list[tuple[str, str]]) -> str:
        return " ".join(_quoted(name.replace(":", r"\:") + (f":{text}" if text else "")) for name, text in items)

    words = "\n".join(
        f"        {_quoted(' '.join(each.path))}) choices=({described([*each.words.items()])}); "
        f"options=({described([(n, o.help) for o in each.options for n in o.names])}) ;;"
        for each in commands
    )
    values = "\n".join(
        f"        {_quoted(f'{chr(32).join(each.path)} {name}')}) values=({' '.join(map(_quoted, option.values))}); "
        "takes=1 ;;"
        for each in commands
        for option in each.options
        if option.takes_value
        for name in option.names
    )
    inner = " ".join(_quoted(" ".join(each.path)) for each in commands if each.path)
    return f"""\
#compdef forebay
# zsh completion of forebay; made by `forebay completion zsh`
_forebay() {{
    local command_path='' word takes=''
    local -a typed choices options values known
    typed=("${{(@)words[2,CURRENT-1]}}")
    local previous="${{words[CURRENT-1]}}"
    known=({inner})
    for word in "${{typed[@]}}"; do
        local longer="${{command_path:+$command_path }}$word"
        (( ${{known[(Ie)$longer]}} )) && command_path="$longer"
    done
    case "$command_path $previous" in
{values}
    esac
    if [[ -n "$takes" ]]; then
        if (( ${{#values}} )); then compadd -- "${{values[@]}}"; else _files; fi
        return
    fi
    case "$command_path" in
{words}
    esac
    (( ${{#choices}} )) && _describe command choices
    _describe option options
    _files
}}
if [ "$funcstack[1]" = _forebay ]; then _forebay "$@"; else compdef _forebay forebay; fi"""


def _fish(commands: list[_Words]) -> str:
    lines = ["# fish completion of forebay; made by `forebay completion fish`"]
    for each in commands:
        if each.path:
            condition = " && ".join(f"__fish_seen_subcommand_from {word}" for word in each.path)
        else:
            condition = "__fish_use_subcommand"
        if each.words and each.path:
            condition_of_words = f"{condition} && not __fish_seen_subcommand_from {' '.join(each.words)}"
        else:
            condition_of_words = condition
        for word, text in each.words.items():
            lines.append(f"complete -c forebay -n {_quoted(condition_of_words)} -a {word} -d {_quoted(text)}")
        for option in each.options:
            names = " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in option.names)
            values = (
                f" -x -a {_quoted(' '.join(option.values))}" if option.values else " -r" if option.takes_value else ""
            )
            lines.append(f"complete -c forebay -n {_quoted(condition)} {names}{values} -d {_quoted(option.help)}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """A word in single quotes, as all three shells read it."""
    return "'" + text.replace("\\", "").replace("'", "'\\''") + "'"


_SHELLS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
