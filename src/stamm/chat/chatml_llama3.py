"""ChatML and Llama 3: formats in which every message is a turn with its role.

    ChatML    <|im_start|>user\\nHello<|im_end|>\\n
    Llama 3   <|start_header_id|>user<|end_header_id|>\\n\\nHello<|eot_id|>

What else a folder's template does (a default system message, trimmed contents, an empty block of
thoughts) is its `TemplateTraits`, which `stamm.chat.template_traits` finds and verifies. Conversations
with tools, and thoughts that the traits do not have, are written by the template itself.

Source   the templates of Qwen 2.5, Qwen 3 and Llama 3 to 3.2
Checked  tests/unit/models/test_hf_chat_format.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, Protocol

from stamm.base.errors import DataError
from stamm.base.files import sha256_value
from stamm.chat.conversation import (
    THINK,
    THINK_END,
    AssistantTurn,
    Block,
    Conversation,
    Response,
    Thoughts,
    ToolCalls,
    ToolOutputs,
    has_blocks,
    merge_blocks,
    one_turn_each,
)
from stamm.chat.formats import ChatFormat, decode_text, until_stop
from stamm.chat.parse import segments_of_ids
from stamm.chat.render import ChatTokenizer, EncodedChat, Segment, encode_segments


@dataclass(frozen=True, kw_only=True)
class TurnSyntax:
    """Syntax of a turn: START role [HEADER_END] GAP content END AFTER.

    start, header_end, end   control tokens; header_end may be ""
    gap, after               text
    stops                    further control tokens that end a turn
    pads                     control tokens for padding, the first that exists
    """

    name: str
    start: str
    header_end: str
    gap: str
    end: str
    after: str
    stops: tuple[str, ...]
    pads: tuple[str, ...]


CHATML = TurnSyntax(
    name="chatml",
    start="<|im_start|>",
    header_end="",
    gap="\n",
    end="<|im_end|>",
    after="\n",
    stops=("<|endoftext|>",),
    pads=("<|endoftext|>",),
)
LLAMA3 = TurnSyntax(
    name="llama3",
    start="<|start_header_id|>",
    header_end="<|end_header_id|>",
    gap="\n\n",
    end="<|eot_id|>",
    after="",
    stops=("<|end_of_text|>", "<|eom_id|>"),
    pads=("<|finetune_right_pad_id|>", "<|end_of_text|>"),
)
SYNTAXES = (CHATML, LLAMA3)
_BEGIN = "<|begin_of_text|>"


@dataclass(frozen=True, kw_only=True)
class TemplateTraits:
    """Properties of a template, apart from the syntax of its turns.

    begin            control token at the beginning; "" for none
    default_system   text of the system turn of a conversation without one; None: it has none
    system_prefix    text before the content of a given system message
    system           whether it can write a system message
    skipped_system   system messages that are written as if there were none: "empty"; "blank": these too
    trim             contents are written without the blanks around them
    thoughts         the last turn of the assistant begins with its thoughts, empty ones included,
                     a prompt without deliberation ends with empty ones, and earlier turns are
                     written without theirs, as in Qwen 3
    """

    begin: str = ""
    default_system: str | None = None
    system_prefix: str = ""
    system: bool = True
    skipped_system: Literal["", "empty", "blank"] = ""
    trim: bool = False
    thoughts: bool = False


def default_traits(syntax: TurnSyntax, has: Callable[[str], bool]) -> TemplateTraits:
    """The traits for a folder without a template; `has`: whether there is a control token of this text."""
    llama = syntax is LLAMA3
    return TemplateTraits(begin=_BEGIN if llama and has(_BEGIN) else "", trim=llama)


def turn_template(syntax: TurnSyntax, traits: TemplateTraits) -> str:
    """A Jinja template that writes turns in a syntax, for a folder without one; see `default_traits`."""

    def literal(text: str) -> str:
        return "'" + text.replace("\n", "\\n") + "'"

    header = syntax.header_end + syntax.gap
    content = "(message.content | trim)" if traits.trim else "message.content"
    turn = " ~ ".join(
        (
            *(literal(syntax.start), "message.role", literal(header)),
            *(content, literal(syntax.end + syntax.after)),
        )
    )
    begin = f"{{{{- {literal(traits.begin)} }}}}\n" if traits.begin else ""
    return (
        f"{begin}{{%- for message in messages %}}\n    {{{{- {turn} }}}}\n{{%- endfor %}}\n"
        f"{{%- if add_generation_prompt %}}\n    {{{{- {literal(syntax.start + 'assistant' + header)} }}}}\n"
        "{%- endif %}"
    )


class RenderedFormat(ChatFormat, Protocol):
    """Protocol of the format of a template that is rendered for each conversation.

    lacks   why the template does not write "thoughts" or "tools", where it does not
    """

    lacks: dict[str, str]


class TurnFormat:
    """The chat format of a template of turns.

    syntax, traits   of the template
    template         its text, for the hash; "" when the folder has none
    end_tokens       further control tokens that end a turn, such as the tokenizer's eos_token
    pad_token        the tokenizer's; "" when it names none
    rendered         the format of the template itself, for tools and further thoughts; None: it has none

    Edge   the header and the body of the last answer are encoded apart, so that a prompt is the
           beginning of the whole; of earlier answers together, as transformers encodes a template
    """

    def __init__(
        self,
        syntax: TurnSyntax,
        traits: TemplateTraits,
        tokenizer: ChatTokenizer,
        *,
        tokenizer_sha256: str,
        template: str = "",
        end_tokens: Sequence[str] = (),
        pad_token: str = "",
        rendered: RenderedFormat | None = None,
    ) -> None:
        self.name, self._rendered = syntax.name, rendered
        self._syntax, self._traits, self._tokenizer = syntax, traits, tokenizer
        # A trait that most templates do not have is left out, so that their hash is that of earlier versions.
        written = {k: v for k, v in asdict(traits).items() if (k, v) != ("skipped_system", "")}
        self.sha256 = sha256_value([syntax.name, 2, template, written, tokenizer_sha256])
        stops = (syntax.end, *syntax.stops, *end_tokens)
        self.stop_ids = frozenset(
            token_id for token in stops if (token_id := self._id(token)) is not None
        )
        pads = (self._id(token) for token in (pad_token, *syntax.pads, syntax.end))
        self.pad_id = next(token_id for token_id in pads if token_id is not None)

    def encode(self, conversation: Conversation, *, prompt: bool = False) -> EncodedChat:
        """As ChatFormat.encode.

        Raises   DataError for tools, for thoughts that the template cannot write, and for a system
                 message when it has none.
        """
        if rendered := self._beyond(conversation):
            return rendered.encode(conversation, prompt=prompt)
        ids: list[int] = []
        supervised: list[bool] = []
        for part in self.parts(conversation, prompt=prompt):
            encoded = encode_segments(part, self._tokenizer)
            ids += encoded.ids
            supervised += encoded.supervised
        return EncodedChat(ids, supervised)

    def parts(self, conversation: Conversation, *, prompt: bool = False) -> Iterator[list[Segment]]:
        """Segments that are encoded together; raises as `encode`."""
        traits = self._traits
        if conversation.tools:
            raise self._unsupported("tools")
        if conversation.system is not None and not traits.system:
            raise self._unsupported("a system message")
        if traits.begin:
            yield [Segment(traits.begin, control=True)]
        system, given = traits.default_system, conversation.system
        if given is not None and not self._is_skipped(given):
            system = traits.system_prefix + self._clean(given)
        if system is not None:
            yield self._turn("system", system)
        last = len(conversation.turns) - 1
        for number, turn in enumerate(conversation.turns):
            if not isinstance(turn, AssistantTurn):
                yield self._turn("user", self._clean(turn.text))
            elif number == last and not prompt:
                yield from self._answer(turn, conversation.deliberation)
            else:
                yield self._earlier(turn)
        if prompt:
            yield from self._header(traits.thoughts and not conversation.deliberation)

    def split(self, conversation: Conversation) -> list[Conversation]:
        """As ChatFormat.split.

        A conversation is split where earlier answers have no thoughts, as in Qwen 3, and where the
        first token of an earlier answer belongs to its header too, as with a line break before it.
        """
        if rendered := self._beyond(conversation):
            return rendered.split(conversation)
        earlier = [
            turn
            for turn in conversation.turns[:-1]
            if isinstance(turn, AssistantTurn) and turn.supervised
        ]
        exact = not self._traits.thoughts and all(map(self._starts_apart, earlier))
        return [conversation] if exact or not earlier else one_turn_each(conversation)

    def parse(self, ids: Sequence[int]) -> tuple[Block, ...]:
        """As ChatFormat.parse."""
        rendered = None if self._traits.thoughts else self._rendered
        if rendered is not None and "thoughts" not in rendered.lacks:
            return rendered.parse(ids)
        blocks: list[Block] = []
        thinking = thought = False
        for segment in segments_of_ids(until_stop(ids, self.stop_ids), self._tokenizer):
            if segment.control:
                thinking = self._traits.thoughts and segment.text == THINK
                thought = thought or (self._traits.thoughts and segment.text == THINK_END)
            elif thinking:  # the template writes line breaks around thoughts
                blocks.append(Thoughts(segment.text.strip("\n")))
            else:
                blocks.append(Response(segment.text.lstrip("\n") if thought else segment.text))
        return merge_blocks(blocks)

    def decode(self, ids: Sequence[int]) -> str:
        """As ChatFormat.decode."""
        return decode_text(ids, self._tokenizer)

    def _beyond(self, conversation: Conversation) -> RenderedFormat | None:
        """The format of the template, for a conversation that turns alone cannot write."""
        tools = bool(conversation.tools) or has_blocks(conversation, ToolCalls, ToolOutputs)
        thoughts = not self._traits.thoughts and has_blocks(conversation, Thoughts)
        if self._rendered is None or not (tools or thoughts):
            return None
        for lacked, given in (("tools", tools), ("thoughts", thoughts)):
            if given and lacked in self._rendered.lacks:
                raise self._unsupported(f"{lacked}: in a test, {self._rendered.lacks[lacked]}")
        return self._rendered

    def _turn(self, role: str, content: str) -> list[Segment]:
        return [*self._role(role, content), *self._ending(supervised=False)]

    def _role(self, role: str, content: str = "") -> list[Segment]:
        syntax = self._syntax
        start = Segment(syntax.start, control=True)
        if not syntax.header_end:
            return [start, Segment(role + syntax.gap + content)]
        header_end = Segment(syntax.header_end, control=True)
        return [start, Segment(role), header_end, Segment(syntax.gap + content)]

    def _ending(self, *, supervised: bool) -> list[Segment]:
        syntax = self._syntax
        end = Segment(syntax.end, control=True, supervised=supervised)
        return [end, Segment(syntax.after)] if syntax.after else [end]

    def _header(self, empty_thoughts: bool) -> Iterator[list[Segment]]:
        yield self._role("assistant")
        if empty_thoughts:
            yield self._thoughts("", supervised=False)
            yield [Segment("\n\n")]

    def _thoughts(self, text: str, *, supervised: bool) -> list[Segment]:
        return [
            Segment(THINK, control=True, supervised=supervised),
            Segment("\n" + text + "\n", supervised=supervised),
            Segment(THINK_END, control=True, supervised=supervised),
        ]

    def _earlier(self, turn: AssistantTurn) -> list[Segment]:
        """An answer before the end of a conversation; with thoughts it is never supervised."""
        supervised = turn.supervised and not self._traits.thoughts
        body = Segment(self._texts(turn)[1], supervised=supervised)
        return [*self._role("assistant"), body, *self._ending(supervised=supervised)]

    def _starts_apart(self, turn: AssistantTurn) -> bool:
        """Whether an earlier answer has the ids that it has after the header as a prompt ends."""
        parts = [self._role("assistant"), [Segment(self._texts(turn)[1])]]
        apart = [id_ for part in parts for id_ in encode_segments(part, self._tokenizer).ids]
        return apart == encode_segments([*parts[0], *parts[1]], self._tokenizer).ids

    def _answer(self, turn: AssistantTurn, deliberation: bool) -> Iterator[list[Segment]]:
        thoughts, text = self._texts(turn)
        thinks = self._traits.thoughts
        if thoughts and not deliberation:
            raise DataError(
                "the answer has thoughts, and deliberation is not enabled",
                fix='Set "deliberation": true in the row, or leave the thoughts out',
            )
        yield from self._header(thinks and not deliberation)
        supervised = turn.supervised
        body: list[Segment] = []
        if thinks:
            text = text.lstrip("\n")
            if deliberation:
                body = self._thoughts(thoughts.strip("\n"), supervised=supervised)
                text = "\n\n" + text
        if text:
            body.append(Segment(text, supervised=supervised))
        yield [*body, *self._ending(supervised=supervised)]

    def _texts(self, turn: AssistantTurn) -> tuple[str, str]:
        """The thoughts and the response of a turn, "" where it has none."""
        thoughts = text = ""
        for number, block in enumerate(turn.blocks):
            if isinstance(block, Response):
                text = block.text
            elif not isinstance(block, Thoughts):
                raise self._unsupported("tool calls")
            elif not self._traits.thoughts:
                raise self._unsupported("thoughts")
            elif number:
                raise self._unsupported("thoughts after a response")
            else:
                thoughts = block.text
        return thoughts, self._clean(text)

    def _is_skipped(self, system: str) -> bool:
        skipped = self._traits.skipped_system
        return bool(skipped) and not (system.strip() if skipped == "blank" else system)

    def _clean(self, text: str) -> str:
        return text.strip() if self._traits.trim else text

    def _id(self, token: str) -> int | None:
        try:
            return self._tokenizer.control_id(token)
        except KeyError:
            return None

    def _unsupported(self, what: str) -> DataError:
        return DataError(f"the chat format {self.name} of this model cannot write {what}")
