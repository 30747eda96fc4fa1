"""Token ids of completions, for log-probabilities and repetition."""

from __future__ import annotations

from dataclasses import dataclass

from stamm.align.results.completions import CompletionLine
from stamm.base.errors import DataError
from stamm.chat.conversation import Conversation, read_conversation
from stamm.chat.formats import ChatFormat


@dataclass(frozen=True)
class EncodedCompletion:
    """A prompt and its completion as ids.

    supervised   True for tokens of the completion that the model wrote
    prompt       ids of the prompt
    recoded      whether the completion has another number of tokens than were sampled
    """

    ids: list[int]
    supervised: list[bool]
    prompt: int
    recoded: bool

    @property
    def completion(self) -> list[int]:
        """The ids of the completion alone."""
        return self.ids[self.prompt :]


def encode_completion(chat: ChatFormat, line: CompletionLine) -> EncodedCompletion | None:
    """The ids of a completion: those that were sampled, or its text encoded again.

    Text that is encoded again has no stop token where it was cut at its longest length, and its
    tokens may differ from those that were sampled.

    Edge   None for a completion that the chat format cannot write, and for one without a sampled token
    """
    try:
        prompt = list(chat.encode(_conversation(line, []), prompt=True).ids)
        if line.token_ids:
            sampled = [False] * len(prompt) + [True] * len(line.token_ids)
            return EncodedCompletion([*prompt, *line.token_ids], sampled, len(prompt), False)
        encoded = chat.encode(_conversation(line, _messages(line.completion)))
    except DataError:
        return None
    start, ids, supervised = len(prompt), list(encoded.ids), list(encoded.supervised)
    if not line.stopped and ids[-1] in chat.stop_ids:
        ids, supervised = ids[:-1], supervised[:-1]
    supervised[:start] = [False] * start
    if not any(supervised):
        return None
    return EncodedCompletion(ids, supervised, start, len(ids) - start != line.num_tokens)


def _conversation(line: CompletionLine, answer: list[object]) -> Conversation:
    return read_conversation(
        [*_messages(line.prompt), *answer],
        tools=line.tools,
        deliberation=line.deliberation,
        empty_answer=True,
    )


def _messages(value: object) -> list[object]:
    if not isinstance(value, list):
        raise DataError("the messages are not a list")
    return value
