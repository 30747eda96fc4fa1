"""The chat format of any template: it is rendered for every conversation, and the loss mask is proved.

An answer is what the rendered conversation has beyond the rendered prompt before it, up to its
first stop token. A template whose prompt is not the beginning of the whole is refused, and so are
texts that spell a control token. Messages, thoughts, calls, outputs and declared tools must be
written unchanged: each is also rendered with a mark, and its text must follow its mark. Where a
template has `{% generation %}` blocks, they have to cover each answer from its prompt to its stop
token, and no text of the user, the system or a tool.

Checked  tests/unit/align/test_template_format.py, tests/unit/align/test_template_tools.py
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from stamm.base.errors import DataError
from stamm.base.files import sha256_value
from stamm.chat.conversation import (
    AssistantTurn,
    Block,
    Conversation,
    Response,
    Thoughts,
    ToolCall,
    ToolCalls,
    ToolOutputs,
    UserTurn,
    has_blocks,
    merge_blocks,
    one_turn_each,
)
from stamm.chat.formats import decode_text, until_stop
from stamm.chat.message_keys import THOUGHTS
from stamm.chat.parse import segments_of_ids
from stamm.chat.render import ChatTokenizer, EncodedChat
from stamm.chat.template_messages import (
    Marks,
    Spelling,
    TextSpan,
    messages_of,
    steps_of,
    tools_of,
    unsupported,
)
from stamm.chat.template_sandbox import Rendered, render_all
from stamm.chat.template_traits import PROBES

_ANSWERED = Conversation(turns=(UserTurn("Hello"), AssistantTurn((Response("Hi!"),))))
_THOUGHT = Conversation(
    turns=(UserTurn("Hello"), AssistantTurn((Thoughts("Greet"), Response("Hi!")))),
    deliberation=True,
)
_CALLED = Conversation(
    turns=(
        UserTurn("Weather?"),
        AssistantTurn(
            (
                ToolCalls((ToolCall("get_weather", '{"city": "Bern", "days": 2}'),)),
                ToolOutputs(("Sun",)),
                Response("Sun."),
            )
        ),
    ),
    tools=(
        {
            "name": "get_weather",
            "description": "Weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    ),
)
TOOL_CASES: list[dict[str, Any]] = [
    {
        "messages": messages_of(None, _CALLED.turns, Spelling()),
        "tools": tools_of(_CALLED.tools),
        "add_generation_prompt": True,
        "enable_thinking": False,
    }
]
"""Variables of a rendering with tools."""


class GenerationSpanError(DataError):
    """A `{% generation %}` block that contradicts the loss mask."""


@dataclass(frozen=True)
class _Written:
    """A rendered conversation, the number of its messages, and where their texts are."""

    rendered: Rendered
    messages: int
    places: list[TextSpan]


class TemplateTokenizer(ChatTokenizer, Protocol):
    """Tokenizer methods that a template needs."""

    def encode_rendered(self, text: str) -> list[int]:
        """The ids of a text whose control tokens are spelled out."""

    def control_tokens(self) -> Collection[str]:
        """The texts of all control tokens."""


class TemplateFormat:
    """The chat format of a template.

    names        variables of the template besides the messages: bos_token and others
    end_tokens   control tokens that end an answer
    pad_token    the tokenizer's; "" when it names none

    Attribute `lacks`: "thoughts" and "tools" where the template does not write them, and why.

    Raises   DataError when the template cannot be rendered, an answer does not continue its prompt or
             ends with none of `end_tokens`, or the tokenizer encodes prompt and answer differently
             when they are separate
    """

    name = "template"

    def __init__(
        self,
        tokenizer: TemplateTokenizer,
        *,
        tokenizer_sha256: str,
        template: str,
        names: Mapping[str, str],
        end_tokens: Sequence[str],
        pad_token: str,
    ) -> None:
        self._tokenizer, self._template, self._names = tokenizer, template, names
        code = re.sub(r"{#.*?#}", "", template, flags=re.DOTALL)
        self._has_spans = re.search(r"{%[-+]?\s*generation\b", code) is not None
        ends = [token for token in end_tokens if token in tokenizer.control_tokens()]
        self._ends, self.stop_ids = ends, frozenset(map(tokenizer.control_id, ends))
        self.sha256 = sha256_value([self.name, 1, template, dict(names), ends, tokenizer_sha256])
        pads = [token for token in (pad_token, *ends) if token in tokenizer.control_tokens()]
        if not ends:
            raise DataError("the tokenizer names no eos_token", fix="Name it in its configuration")
        self.pad_id = tokenizer.control_id(pads[0])
        self._around: list[tuple[str, str]] = []
        self._thinking = self._between = ""
        self._spelling = Spelling(thoughts=_thoughts_key(template))
        self.lacks: dict[str, str] = {}
        self._find_answer()
        for probe in PROBES:
            if probe.system is None and isinstance(probe.turns[-1], AssistantTurn):
                whole = tokenizer.encode_rendered(self._written(probe, prompt=False).rendered.text)
                if self.encode(probe).ids != whole:
                    raise DataError("the tokenizer encodes an answer differently beside its prompt")
        self._find_thoughts()
        self._find_tools()

    def encode(self, conversation: Conversation, *, prompt: bool = False) -> EncodedChat:
        """As ChatFormat.encode; of the turns, the last alone is supervised, with all its messages.

        Raises   DataError for what the template cannot write, and for texts with a control token
        """
        last = conversation.turns[-1]
        encoded = self._tokenizer.encode_rendered
        if prompt or not isinstance(last, AssistantTurn):
            ids = encoded(self._written(conversation, prompt=prompt).rendered.text)
            return EncodedChat(ids, [False] * len(ids))
        if not conversation.deliberation and any(isinstance(b, Thoughts) for b in last.blocks):
            raise DataError(
                "the answer has thoughts, and deliberation is not enabled",
                fix='Set "deliberation": true in the row, or leave the thoughts out',
            )
        answers = self._answers(conversation)
        begun, _, text = answers[-1]
        if last.blocks and isinstance(last.blocks[-1], ToolOutputs):
            text = self._written(conversation, prompt=False).rendered.text
        if any(not text.startswith(before + said) for before, said, _ in answers):
            raise unsupported("the messages of this turn alike when others follow")
        head, whole = encoded(begun), encoded(text)
        body = whole[len(head) :]
        if whole[: len(head)] != head:  # a token has characters of both
            body = encoded(text[len(begun) :])
            if self._tokenizer.decode(head + body) != self._tokenizer.decode(whole):
                raise DataError("the tokenizer joins the beginning of this answer with its prompt")
        ids = head + body
        trained = [False] * len(ids)
        for before, _, _ in answers:
            start = head if before == begun else encoded(before)
            if ids[: len(start)] != start:
                raise DataError("the tokenizer joins the beginning of a call with its prompt")
            end = next(i for i in range(len(start), len(ids)) if ids[i] in self.stop_ids)
            trained[len(start) : end + 1] = [last.supervised] * (end + 1 - len(start))
        return EncodedChat(ids, trained)

    def split(self, conversation: Conversation) -> list[Conversation]:
        """As ChatFormat.split: a conversation for each message of each supervised turn.

        The messages of its turn before it, and their outputs, are a turn that is context.
        """
        parts = []
        for part in one_turn_each(conversation):
            *context, turn = part.turns
            assert isinstance(turn, AssistantTurn)
            done: list[Block] = []
            for step in steps_of(turn):
                before = [AssistantTurn(tuple(done), supervised=False)] if done else []
                said = tuple(block for block in step if not isinstance(block, ToolOutputs))
                parts.append(replace(part, turns=(*context, *before, AssistantTurn(said))))
                done += step
        return parts or [conversation]

    def parse(self, ids: Sequence[int]) -> tuple[Block, ...]:
        """As ChatFormat.parse. Calls stay text."""
        between = self._between.strip()
        own = until_stop(ids, self.stop_ids)
        if between:
            text = "".join(
                segment.text
                for segment in segments_of_ids(own, self._tokenizer)
                if not segment.control or segment.text in self._thinking + between
            )
            thoughts, separator, response = text.partition(between)
            if separator:
                thoughts = thoughts.strip().removeprefix(self._thinking.strip()).strip("\n")
                response = response.lstrip("\n").removesuffix(self._around[0][1])
                return merge_blocks((Thoughts(thoughts), Response(response)))
        text = self._inner(self.decode(own))[0]
        return (Response(text),) if text else ()

    def decode(self, ids: Sequence[int]) -> str:
        """As ChatFormat.decode."""
        return decode_text(ids, self._tokenizer)

    def _find_answer(self) -> None:
        """Find what the template writes around an answer, without and with deliberation."""
        for deliberation in (False, True):
            try:
                text = self._last_text(replace(_ANSWERED, deliberation=deliberation))
            except GenerationSpanError:
                raise
            except DataError:
                if deliberation:  # which has no effect in most templates
                    return
                raise
            before, answer, after = text.partition("Hi!")
            if not answer:
                raise DataError("the chat template changes the text of an answer")
            self._around.append((before, after))

    def _find_thoughts(self) -> None:
        """Find how the template writes thoughts, and an answer after them."""
        try:
            text = self._last_text(_THOUGHT)
        except DataError as error:
            self.lacks["thoughts"] = error.what
            return
        self._thinking, rest = text.split("Greet", 1)
        self._between = rest.split("Hi!", 1)[0]

    def _find_tools(self) -> None:
        """Find in which form the template reads the arguments of calls; some write tools with a system message."""
        for system, arguments_text in itertools.product((None, "Be brief."), (False, True)):
            self._spelling = replace(self._spelling, arguments_text=arguments_text)
            try:
                for part in self.split(replace(_CALLED, system=system)):
                    self.encode(part)
            except DataError as error:
                self.lacks.setdefault("tools", error.what)
            else:
                self.lacks.pop("tools", None)
                return
        self._spelling = replace(self._spelling, arguments_text=False)

    def _last_text(self, conversation: Conversation) -> str:
        """The last answer before its stop token."""
        _, answer, _ = self._answer(conversation, probe=True)
        return answer[: min(answer.find(token) for token in self._ends if token in answer)]

    def _answers(self, conversation: Conversation) -> list[tuple[str, str, str]]:
        """For each message of the last turn its prompt, itself with its stop token, and both with the rest."""
        turn = conversation.turns[-1]
        assert isinstance(turn, AssistantTurn)
        parts = self.split(
            replace(conversation, turns=(*conversation.turns[:-1], replace(turn, supervised=True)))
        )
        count = len(steps_of(turn))
        return [self._answer(part) for part in parts[-count:]]

    def _answer(self, conversation: Conversation, *, probe: bool = False) -> tuple[str, str, str]:
        """The rendered prompt of the last message, this message with its stop token, and the whole.

        probe   any text may be around an answer
        """
        written = self._written(conversation, prompt=False)
        text = written.rendered.text
        context = replace(conversation, turns=conversation.turns[:-1])
        begun = self._written(context, prompt=True).rendered.text
        if not text.startswith(begun):
            raise DataError(
                "the chat template writes an answer otherwise than after its prompt",
                fix="Its loss mask cannot be proved: use a template that continues its prompt",
            )
        body = text[len(begun) :]
        ends = [(body.find(token), token) for token in self._ends if token in body]
        if not ends:
            tokens = [token for token in self._tokenizer.control_tokens() if token in body]
            token = min(tokens, key=body.find, default="no control token")
            raise DataError(
                f"the chat template ends an answer with {token!r}, which does not end a text",
                fix="Name its id in eos_token_id of generation_config.json",
            )
        body_length, token = min(ends)
        turn = conversation.turns[-1]
        assert isinstance(turn, AssistantTurn)
        inside = [span for span in written.places if span.message == written.messages - 1]
        plain = all(isinstance(block, Response) for block in turn.blocks)
        said = turn.text.strip()
        if plain and not probe and said not in map(str.strip, self._inner(body[:body_length])):
            raise unsupported("this assistant message, or changes it")
        if not plain and any(
            span.start < len(begun) or span.end > len(begun) + body_length for span in inside
        ):
            raise unsupported("this assistant message within one turn")
        self._check_spans(written.rendered, len(begun), len(begun) + body_length, token)
        return begun, body[: body_length + len(token)], text

    def _check_spans(self, rendered: Rendered, start: int, end: int, token: str) -> None:
        """Check that `{% generation %}` blocks cover an answer, with the stop token at `end`."""
        if not self._has_spans:
            return
        reached = start
        for first, last in rendered.spans:
            if first <= reached:
                reached = max(reached, last)
        if reached >= end + len(token):
            return
        left_out = rendered.text[reached : end + len(token)]
        what = f"{left_out[:60]!r} of an answer, which the model has to write after its prompt"
        if reached == end:
            what = f"the end token {token!r} of an answer"
        raise GenerationSpanError(
            f"{{% generation %}} of the chat template leaves out {what}",
            fix="Let the block cover the answer and its end token, or remove the block",
        )

    def _inner(self, answer: str) -> list[str]:
        """An answer without the texts that the template writes around it, within its turn: each way."""
        return [answer.removeprefix(before).removesuffix(after) for before, after in self._around]

    def _written(self, conversation: Conversation, *, prompt: bool) -> _Written:
        if "thoughts" in self.lacks and has_blocks(conversation, Thoughts):
            raise unsupported("thoughts")
        messages = messages_of(conversation.system, conversation.turns, self._spelling)
        tools = tools_of(conversation.tools)
        last = conversation.turns[-1] if conversation.turns else None
        answers: Collection[int] = ()
        if isinstance(last, AssistantTurn) and not prompt:
            first = len(messages_of(conversation.system, conversation.turns[:-1], self._spelling))
            answers = range(first, len(messages))
        marks = Marks(
            messages,
            tools,
            self._spelling,
            answers=answers,
            control_tokens=self._tokenizer.control_tokens(),
        )
        shared = {"add_generation_prompt": prompt, "enable_thinking": conversation.deliberation}
        cases = [
            {"messages": messages, "tools": tools, **shared},
            {"messages": marks.messages, "tools": marks.tools, **shared},
        ]
        rendered, marked = render_all(self._template, cases, self._names)
        if error := rendered.error or marked.error:
            raise DataError(f"the chat template cannot be rendered: {error}")
        places = marks.places(rendered.text, marked.text)
        for span in places:
            role = messages[span.message]["role"]
            if role != "assistant" and any(
                first < span.end and span.start < last for first, last in rendered.spans
            ):
                raise GenerationSpanError(
                    f"{{% generation %}} of the chat template covers the text of a {role} message",
                    fix="Let the block cover the text of the assistant alone, or remove it",
                )
        return _Written(rendered, len(messages), places)


def _thoughts_key(template: str) -> str:
    """The key of thoughts that a template reads."""
    read = [key for key in THOUGHTS if re.search(rf"[.'\"]{key}\b", template)]
    return read[0] if read else THOUGHTS[0]
