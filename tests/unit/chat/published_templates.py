"""Chat templates with tools, thoughts and generation spans: reduced forms of published ones.

They are written from memory, keep what decides the layout of tools, calls, outputs and thoughts, and leave out
what does not (instructions in prose, dates, built-in tools). None is the published file.
"""

from __future__ import annotations

import dataclasses

CHATML_TOOL_TOKENS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")  # fmt: skip
LLAMA31_TOKENS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>")  # fmt: skip
MISTRAL_TOKENS = ("[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]")  # fmt: skip
PHI3_TOKENS = ("<|user|>", "<|assistant|>", "<|system|>", "<|end|>")
DEEPSEEK_TOKENS = ("<|User|>", "<|Assistant|>", "<|calls|>", "<|call|>", "<|sep|>", "<|outputs|>")

_QWEN_TOOLS = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content }}{% else %}{{- DEFAULT }}{% endif %}
    {{- '\\n\\n# Tools\\n\\nFunction signatures within <tools></tools> XML tags:\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{% endfor %}
    {{- '\\n</tools>\\n\\nFor each function call, return a json object.<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- elif DEFAULT %}
    {{- '<|im_start|>system\\n' + DEFAULT + '<|im_end|>\\n' }}
{%- endif %}
"""
_QWEN_CALLS = """\
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or not loop.first %}{{- '\\n' }}{% endif %}
                {%- if tool_call.function %}{% set tool_call = tool_call.function %}{% endif %}
                {{- '<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
                {%- if tool_call.arguments is string %}{{- tool_call.arguments }}
                {%- else %}{{- tool_call.arguments | tojson }}{% endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
"""
_QWEN_OUTPUTS = """\
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{% endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if THINKS and enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
QWEN25 = (
    "{%- set DEFAULT = 'You are a helpful assistant.' %}{% set THINKS = false %}"
    + _QWEN_TOOLS
    + """\
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' + content }}
"""
    + _QWEN_CALLS
    + _QWEN_OUTPUTS
)
QWEN3 = (
    "{%- set DEFAULT = '' %}{% set THINKS = true %}"
    + _QWEN_TOOLS
    + """\
{%- set ns = namespace(last=messages | length - 1, open=true) %}
{%- for message in messages[::-1] %}
    {%- if ns.open and message.role == 'user' %}
        {%- set ns.open = false %}{% set ns.last = messages | length - 1 - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set thoughts = message.reasoning_content if message.reasoning_content is string else '' %}
        {%- if loop.index0 > ns.last and (loop.last or thoughts) %}
            {{- '<|im_start|>assistant\\n<think>\\n' + thoughts.strip('\\n') + '\\n</think>\\n\\n' }}
            {{- content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>assistant\\n' + content }}
        {%- endif %}
"""
    + _QWEN_CALLS
    + _QWEN_OUTPUTS
)
LLAMA31 = """\
{{- bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content | trim %}{% set messages = messages[1:] %}
{%- else %}{% set system = '' %}{% endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{%- if tools is not none %}{{- 'Environment: ipython\\n' }}{% endif %}
{{- 'Cutting Knowledge Date: December 2023\\n\\n' + system + '<|eot_id|>' }}
{%- if tools is not none %}
    {%- if messages | length == 0 %}{{- raise_exception('Cannot put tools in the first user message') }}{% endif %}
    {%- set first = messages[0].content | trim %}{% set messages = messages[1:] %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\nGiven the following functions, respond with JSON.\\n\\n' }}
    {%- for tool in tools %}{{- tool | tojson(indent=4) }}{{- '\\n\\n' }}{% endfor %}
    {{- first + '<|eot_id|>' }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if message.tool_calls | length != 1 %}
            {{- raise_exception('This model only supports single tool-calls at once!') }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- '{"name": "' + call.name + '", "parameters": ' }}{{- call.arguments | tojson }}{{- '}<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}
        {%- else %}{{- message.content }}{% endif %}
        {{- '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""
MISTRAL_V3 = """\
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content %}{% set rest = messages[1:] %}
{%- else %}{% set rest = messages %}{% endif %}
{%- set asked = rest | selectattr('role', 'equalto', 'user') | list %}
{{- bos_token }}
{%- for message in rest %}
    {%- if message.role == 'user' %}
        {%- if tools is not none and message == asked[-1] %}
            {{- '[AVAILABLE_TOOLS] [' }}
            {%- for tool in tools %}
                {{- '{"type": "function", "function": ' + tool.function | tojson + '}' }}
                {{- ', ' if not loop.last else ']' }}
            {%- endfor %}
            {{- '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {%- if loop.last and system is defined %}
            {{- '[INST] ' + system + '\\n\\n' + message.content + '[/INST]' }}
        {%- else %}{{- '[INST] ' + message.content + '[/INST]' }}{% endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- '[TOOL_CALLS] [' }}
        {%- for call in message.tool_calls %}
            {{- (call.function | tojson)[:-1] }}
            {%- if not call.id is defined or call.id | length != 9 %}
                {{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}
            {%- endif %}
            {{- ', "id": "' + call.id + '"}' }}{{- ', ' if not loop.last else ']' + eos_token }}
        {%- endfor %}
    {%- elif message.role == 'assistant' %}{{- ' ' + message.content + eos_token }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | string + ', ' }}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}"""
PHI3 = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
SMOLLM3 = """\
{{- '<|im_start|>system\\n## Metadata\\n\\nReasoning Mode: ' + ('/think' if enable_thinking else '/no_think') + '\\n\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{% endif %}
{%- if tools %}
    {{- '### Tools\\n\\n<tools>\\n' }}
    {%- for tool in tools %}{{- tool | string + '\\n' }}{% endfor %}
    {{- '</tools>\\n\\n' }}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'user' %}
        {{- '<|im_start|>user\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- generation %}
        {{- '<|im_start|>assistant\\n' + ('' if enable_thinking else '<think>\\n\\n</think>\\n') }}
        {{- content.lstrip('\\n') + '<|im_end|>\\n' }}
        {%- endgeneration %}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' + ('' if enable_thinking else '<think>\\n\\n</think>\\n') }}
{%- endif %}"""
SPANS = """\
{%- if tools %}{{- '<|im_start|>system\\n' + tools | tojson + '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}
        {%- if message.reasoning_content %}
            {{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>\\n' + call.function | tojson + '\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\\n' }}
    {%- else %}
        {{- message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""
DEEPSEEK_V3 = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'system' %}{{- message.content }}
        {%- if tools %}{{- '\\n\\n' + tools | tojson }}{% endif %}
    {%- elif message.role == 'user' %}{{- '<|User|>' + message.content }}
    {%- elif message.role == 'tool' %}{{- '<|outputs|>' + message.content }}
    {%- elif message.tool_calls %}
        {{- '<|Assistant|>' + message.content + '<|calls|>' }}
        {%- for call in message.tool_calls %}
            {{- '<|call|>function<|sep|>' + call.function.name + '\\n```json\\n' + call.function.arguments + '\\n```' }}
        {%- endfor %}
        {{- eos_token }}
    {%- else %}{{- '<|Assistant|>' + message.content + eos_token }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|Assistant|>' }}{% endif %}"""


@dataclasses.dataclass(frozen=True)
class Published:
    """A template in reduced form, and what it writes.

    tokens       control tokens besides <s> and </s>
    end          the eos_token
    calls        most calls of a message; 0: no tools
    beside       whether text beside a call is written
    thoughts     whether reasoning_content is written
    system       whether a system message is written, also before answers
    needs_system whether tools are written with a system message alone
    text         whether arguments are read as JSON text
    ids          whether it writes identifiers of calls
    """

    template: str
    tokens: tuple[str, ...]
    end: str
    calls: int = 2
    beside: bool = True
    thoughts: bool = False
    system: bool = True
    needs_system: bool = False
    text: bool = False
    ids: bool = False


PUBLISHED = {
    "Qwen2.5": Published(QWEN25, CHATML_TOOL_TOKENS, "<|im_end|>"),
    "Qwen3": Published(QWEN3, CHATML_TOOL_TOKENS, "<|im_end|>", thoughts=True),
    "Llama 3.1": Published(LLAMA31, LLAMA31_TOKENS, "<|eot_id|>", calls=1, beside=False),
    "Mistral v3": Published(MISTRAL_V3, MISTRAL_TOKENS, "</s>", beside=False, system=False, ids=True),
    "Phi-3": Published(PHI3, PHI3_TOKENS, "<|end|>", calls=0),
    "SmolLM3": Published(SMOLLM3, CHATML_TOOL_TOKENS, "<|im_end|>", calls=0),
    "generation spans": Published(
        SPANS, CHATML_TOOL_TOKENS, "<|im_end|>", thoughts=True
    ),
    "DeepSeek V3": Published(DEEPSEEK_V3, DEEPSEEK_TOKENS, "</s>", text=True, needs_system=True),
}  # fmt: skip
