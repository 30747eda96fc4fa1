"""Find what a chat template does by rendering probes, and verify that a format writes the same text.

    rendered = render_all(template, CASES, tokens)
    traits = find_traits(syntax, rendered, bos_token)

The probes are conversations with and without a system message, of one and several turns, with blanks
around the contents and with other scripts; as prompts and as wholes.

Checked  tests/unit/models/test_hf_chat_format.py
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from stamm.base.errors import DataError
from stamm.chat.chatml_llama3 import TemplateTraits, TurnSyntax
from stamm.chat.conversation import (
    THINK,
    AssistantTurn,
    Conversation,
    Response,
    Thoughts,
    UserTurn,
)
from stamm.chat.template_sandbox import Rendered

_FIX = "Supported are the templates of Apertus, and those of ChatML and Llama 3 without tools"
_HELLO, _SYSTEM, _ANSWER = "Hello", "Be brief.", "Hi!"


def _conversation(system: str | None, *texts: str) -> Conversation:
    turns = (
        UserTurn(text) if number % 2 == 0 else AssistantTurn((Response(text),))
        for number, text in enumerate(texts)
    )
    return Conversation(turns=tuple(turns), system=system)


PROBES: tuple[Conversation, ...] = (
    _conversation(None, _HELLO),
    _conversation(_SYSTEM, _HELLO),
    _conversation(None, " Hello\n"),
    _conversation(None, _HELLO, _ANSWER),
    _conversation("", _HELLO),
    _conversation("  ", _HELLO),
    _conversation(None, "Wer?", "Ich bin's.", "敏捷的狐狸 🦊?", "Ja, 12 + 3 = 15\n\n- x"),
    _conversation("  Zürich\n\n2 ", "\tint x;\n", "a\n", "  ", "b  "),
    _conversation(None, *"abcdefghijklm"),
    _conversation(
        "/think", "Say /no_think", "/think", "a /no_think", "x\n\n\n\n\r\ny  z", "\n\n\nb\r\n\n\nc"
    ),
    _conversation(None, "a", "\n\n\n b", "c /think"),
    _conversation(None, "a /no_think"),
)
"""Conversations that are rendered; the first six show the traits."""
_REASONED = Conversation(
    turns=(UserTurn(_HELLO), AssistantTurn((Thoughts("\nGreet\n"), Response("\n\n Hi!")))),
    deliberation=True,
)
_REASONED_BEFORE = Conversation(turns=(*_REASONED.turns, UserTurn("And?")), deliberation=True)

Case = dict[str, Any]
Written = Response | Thoughts


def cases() -> list[Case]:
    """The variables of each rendering: each probe as a whole, then those that end with the user as
    prompts, without and with deliberation, then two with thoughts, in the last and in an earlier turn.
    """
    return [_case(*planned) for planned in _plan()]


def _plan() -> Iterator[tuple[Conversation, bool, bool]]:
    """Probe, whether it is a prompt, and its deliberation, in the order of the renderings."""
    for probe in PROBES:
        yield probe, False, False
    for probe, deliberation in itertools.product(PROBES, (False, True)):
        if isinstance(probe.turns[-1], UserTurn):
            yield probe, True, deliberation
    yield _REASONED, False, True
    yield _REASONED_BEFORE, True, True


def _case(probe: Conversation, prompt: bool, deliberation: bool) -> Case:
    messages: list[dict[str, str]] = []
    if probe.system is not None:
        messages.append({"role": "system", "content": probe.system})
    for turn in probe.turns:
        if isinstance(turn, UserTurn):
            messages.append({"role": "user", "content": turn.text})
            continue
        texts = {type(block): block.text for block in turn.blocks if isinstance(block, Written)}
        thoughts = {"reasoning_content": texts[Thoughts]} if Thoughts in texts else {}
        messages.append({"role": "assistant", "content": texts[Response], **thoughts})
    return {
        "messages": messages,
        "add_generation_prompt": prompt,
        "enable_thinking": deliberation,
    }


def find_traits(syntax: TurnSyntax, rendered: Sequence[Rendered], begin: str) -> TemplateTraits:
    """The traits of a template of turns.

    rendered   of `cases`
    begin      the tokenizer's bos_token, "" when it has none

    Raises   DataError when the template does not write turns in this syntax.
    """
    plain, with_system, blanks, answered, empty, blank = rendered[:6]
    user = _turn(syntax, "user", _HELLO)
    if not plain.text.endswith(user):
        raise _unknown(syntax, plain, user)
    head = plain.text.removesuffix(user)
    used = begin if begin and head.startswith(begin) else ""
    default = _system_text(syntax, head.removeprefix(used))
    head = with_system.text.removesuffix(user).removeprefix(used)
    written = _system_text(syntax, head) if with_system.text.endswith(user) else None
    system = not with_system.error and written is not None and written.endswith(_SYSTEM)
    skipped: Literal["", "empty", "blank"] = ""
    if system and empty == plain:
        skipped = "blank" if blank == plain else "empty"
    return TemplateTraits(
        begin=used,
        default_system=default,
        system_prefix=(written or "").removesuffix(_SYSTEM) if system else "",
        system=system,
        skipped_system=skipped,
        trim=blanks.text.endswith(_turn(syntax, "user", _HELLO)),
        thoughts=THINK in answered.text,
    )


def verify(
    rendered: Sequence[Rendered],
    write: Callable[[Conversation, bool], str],
    *,
    system: bool = True,
    thoughts: bool = False,
    equal: Callable[[str, str], bool] = str.__eq__,
) -> list[tuple[Conversation, bool, str]]:
    """Check that a format writes what the template renders, for every probe.

    Returns each verified probe, whether it is a prompt, and the template's text.


    rendered   of `cases`
    write      the format's text of a conversation, as a prompt or as a whole
    system     False: probes with a system message are left out
    thoughts   True: the probes with thoughts are verified too
    equal      whether our text, given first, and the template's count as the same

    Raises   DataError with the first difference.
    """
    verified = []
    for (probe, prompt, deliberation), theirs in zip(_plan(), rendered, strict=True):
        reasoned = probe is _REASONED or probe is _REASONED_BEFORE
        if (probe.system is not None and not system) or (reasoned and not thoughts):
            continue
        if theirs.error:
            raise DataError(f"the chat template cannot be rendered: {theirs.error}", fix=_FIX)
        asked = Conversation(turns=probe.turns, system=probe.system, deliberation=deliberation)
        ours = write(asked, prompt)
        if not equal(ours, theirs.text):
            raise _different(ours, theirs.text)
        verified.append((asked, prompt, theirs.text))
    return verified


def _different(ours: str, theirs: str) -> DataError:
    """The error for two texts, with what each has at their first difference."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    at = next((index for index, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
    start = max(at - 30, 0)
    return DataError(
        f"the chat template is not supported: it writes {theirs[start : at + 60]!r} where "
        f"the known format has {ours[start : at + 60]!r}",
        fix=_FIX,
    )


def _turn(syntax: TurnSyntax, role: str, content: str) -> str:
    return (
        syntax.start + role + syntax.header_end + syntax.gap + content + syntax.end + syntax.after
    )


def _system_text(syntax: TurnSyntax, head: str) -> str | None:
    """The content of the system turn that `head` is; None when it is something else."""
    before, after = _turn(syntax, "system", "\0").split("\0")
    if not head.startswith(before) or not head.endswith(after) or len(head) < len(before + after):
        return None
    return head[len(before) : len(head) - len(after)]


def _unknown(syntax: TurnSyntax, rendered: Rendered, expected: str) -> DataError:
    if rendered.error:
        return DataError(f"the chat template cannot be rendered: {rendered.error}", fix=_FIX)
    return DataError(
        f"the chat template is not supported: it ends a message with "
        f"{rendered.text[-60:]!r}, not as {syntax.name} does with {expected!r}",
        fix=_FIX,
    )
