"""A decoder with its tokenizer: how texts, contexts and conversations become token ids for scoring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stamm.base.errors import ConfigError, DataError
from stamm.chat.conversation import AssistantTurn, Conversation, Response, UserTurn
from stamm.chat.formats import ApertusFormat, ChatFormat
from stamm.chat.template_files import folder_template
from stamm.corpus.special_tokens import BEGIN_ID, END_ID
from stamm.corpus.tokenizer.imported import ImportedTokenizer, tokenizer_config
from stamm.corpus.tokenizer.tokenizer import Tokenizer
from stamm.models.decoder import Decoder

AnyTokenizer = Tokenizer | ImportedTokenizer
_CONFIG = "tokenizer_config.json"


@dataclass(frozen=True, kw_only=True)
class TextModel:
    """A model that reads text.

    prefix     ids before every text: <s> for a tokenizer of stamm's; of another model, what its
               tokenizer.json adds
    begin      id before a text without a context; None where the tokenizer names no such token
    stop_ids   tokens that end a text
    chat       chat format; None where it is not known
    sha256     of the weights
    """

    decoder: Decoder
    tokenizer: AnyTokenizer
    prefix: tuple[int, ...]
    begin: int | None
    stop_ids: frozenset[int]
    chat: ChatFormat | None
    sha256: str

    def context_ids(self, context: str) -> list[int]:
        """The ids of a context; never empty.

        Raises   ConfigError for an empty context where the tokenizer names no token to begin with.
        """
        return [*self.prefix, *self.tokenizer.encode(context)] or [self._begin()]

    def encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """The ids of a context and of its continuation, split as lm-evaluation-harness does.

        White space at the end of the context belongs to the continuation. Both are encoded as one
        text, and the continuation has the ids beyond the number of those of the context alone, so
        it never changes the context's. Where that leaves none, it is encoded by itself.

        Source   EleutherAI/lm-evaluation-harness, lm_eval/api/model.py: TemplateLM._encode_pair
        Checked  tests/unit/evaluate/test_scoring.py::test_the_boundary_is_that_of_the_harness
        """
        kept = context.rstrip()
        continuation, context = context[len(kept) :] + continuation, kept
        first = self.tokenizer.encode(context) if context else []
        whole = self.tokenizer.encode(context + continuation)
        rest = whole[len(first) :] or self.tokenizer.encode(continuation)
        return [*self.prefix, *first] or [self._begin()], rest

    def chat_ids(self, examples: Sequence[tuple[str, str]], question: str) -> list[int]:
        """The ids of a conversation that ends where the assistant begins to answer `question`.

        examples   earlier questions and answers

        Raises     ConfigError without a chat format.
        """
        if self.chat is None:
            raise ConfigError(
                "chat = True, and no chat format is known for this tokenizer", fix="Set chat=false"
            )
        turns: list[UserTurn | AssistantTurn] = []
        for asked, answer in examples:
            turns += [UserTurn(asked), AssistantTurn((Response(answer.strip()),))]
        turns.append(UserTurn(question))
        return self.chat.encode(Conversation(turns=tuple(turns)), prompt=True).ids

    def _begin(self) -> int:
        if self.begin is None:
            raise ConfigError(
                "a text without a context is scored, and the tokenizer names no token before it",
                fix=f"Name bos_token or eos_token in {_CONFIG}",
            )
        return self.begin


def text_model(
    decoder: Decoder,
    tokenizer: AnyTokenizer,
    folder: Path,
    sha256: str,
    chat: ChatFormat | None = None,
) -> TextModel:
    """The decoder with its tokenizer.

    folder   of the tokenizer; tokenizer_config.json there names the tokens of an imported one
    chat     chat format; None: that of Apertus for a tokenizer of stamm's
    """
    if isinstance(tokenizer, Tokenizer):
        return TextModel(
            decoder=decoder,
            tokenizer=tokenizer,
            prefix=(BEGIN_ID,),
            begin=BEGIN_ID,
            stop_ids=frozenset({END_ID}),
            chat=chat or ApertusFormat(tokenizer, tokenizer.sha256),
            sha256=sha256,
        )
    prefix = tuple(tokenizer.prefix_ids())
    named = {
        key: tokenizer.control_id(text)
        for key, text in _named_tokens(folder).items()
        if tokenizer.has(text)
    }
    end = named.get("eos_token")
    return TextModel(
        decoder=decoder,
        tokenizer=tokenizer,
        prefix=prefix,
        begin=prefix[-1] if prefix else named.get("bos_token", end),
        stop_ids=frozenset() if end is None else frozenset({end}),
        chat=chat,
        sha256=sha256,
    )


def load_tokenizer(folder: Path) -> AnyTokenizer:
    """The tokenizer in a folder: one of stamm's, or else another model's.

    Raises   DataError when it is neither.
    """
    try:
        return Tokenizer.load(folder)
    except DataError as error:
        own = error
    try:
        return ImportedTokenizer.load(folder, folder_template(folder))
    except DataError:
        if (folder / _CONFIG).is_file():  # another model's: its own reason counts
            raise
        raise own from None


def _named_tokens(folder: Path) -> dict[str, str]:
    """bos_token and eos_token of tokenizer_config.json: strings, or objects with their content."""
    stored = tokenizer_config(folder)
    found = {}
    for key in ("bos_token", "eos_token"):
        value = stored.get(key)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[key] = text
    return found
