"""Renders small chat templates with Python's Jinja, the way model hubs do, to compare our interpreter with.

usage: make_chat_templates.py > chat_templates.json   (needs the package jinja2)
Each row: name, template, messages, and either "text" or "refused" (the template raised an exception).
"""
import json
import sys

from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

TEMPLATES = {
    "chatml": """{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "chatml_blocks": """
{# one line for each message #}
{%- for message in messages %}
    {%- if loop.first and message.role != "system" %}
<|im_start|>system
Default.<|im_end|>
    {%- endif %}
    {% if message.content is string and message.content | trim | length > 0 %}
<|im_start|>{{ message.role }}
{{ message.content | trim }}<|im_end|>
    {% else %}
    (empty {{ loop.index }} of {{ loop.length }})
    {% endif %}
{%- endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
""",
    "llama3": """{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}""",
    "llama31": """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{#- the system message may stand first #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {{- raise_exception("no tools here") }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "gemma": """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}""",
    "gemma3": """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\\n'}}
{%- endif -%}
""",
    "mistral": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- else %}
        {{- " " + message["content"] + eos_token}}
    {%- endif %}
{%- endfor %}
""",
    "phi3": """{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] == 'user' %}{{'<|user|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>
' + message['content'] + '<|end|>
'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>
' }}{% else %}{{ eos_token }}{% endif %}""",
    "qwen3_think": """
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and reasoning_content %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
""",
    "macros": """
{%- macro turn(role, text='', end="<|end|>") -%}
<|{{ role | upper }}|>{{ text }}{{ end }}
{%- endmacro -%}
{%- for m in messages if m.role != 'system' -%}
{{ turn(m.role, text=m.content) }}
{%- else -%}
{{ turn('nobody') }}
{%- endfor -%}
{{ turn('assistant', end='') }}
""",
    "expressions": """{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 * 3 - 1 }} {{ 1 ~ 'a' ~ none ~ true }} {{ 0.1 + 0.2 }} {{ 1e3 if false else 10000000000000000.0 }}
{{ 'a' if 0 else 'b' }} {{ 'x' if false }}| {{ not true or 1 < 2 and 3 != 4 }} {{ 2 in [1, 2] }} {{ 'b' not in 'abc' }}
{{ messages | map(attribute='role') | join(', ') }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages | rejectattr('role', 'eq', 'user') | map(attribute='content') | map('upper') | list }}
{{ {'a': 1, "b": ['x', none, true, 1.5, 'it\\'s', "q\\"\\n"]} }} {{ {'a': {'b': [1, 2]}, 'c': 'é"\\n'} | tojson }}
{{ [1, {'k': []}] | tojson(indent=2) }} {{ messages | tojson }}
{{ 'héllo'[1:3] }} {{ 'abc'[::-1] }} {{ 'abc'[-1] }} {{ [1, 2, 3][:-1] }} {{ ' a b  c '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'abcabc'.replace('b', 'X', 1) }} {{ 'héllo' | length }} {{ 'xxaxx'.strip('x') }} {{ 'hello wORLD it\\'s'.title() }} {{ 'hELLO' | capitalize }} {{ ' \\t x\\u00a0' | trim }}|
{%- for k, v in {'x': 1, 'y': 2}.items() %} {{ k }}={{ v }}{{ ',' if not loop.last }}{{ loop.revindex }}{% endfor %}
{% for x in range(2, 9, 3) %}{{ x }}{{ loop.previtem | default('-') }}{{ loop.nextitem | d('+') }} {% if x > 4 %}{% break %}{% endif %}{% endfor %}
{% for x in range(5) %}{% if x is odd %}{% continue %}{% endif %}{{ x }}{% endfor %}
{% set x = 1 %}{% for i in range(2) %}{% set x = 5 %}{% endfor %}{{ x }} {% set block %}in {{ x }} side{% endset %}{{ block }} {{ missing }}{{ missing is defined }} {{ (missing or 'else') }} {{ [3, 1] | first }} {{ [3, 1] | last }} {{ '12' | int + 1 }} {{ 3 | string + '!' }} {{ {'a': 1}.get('b', 2) }} {{ {'a': none}.get('b') is none }} {{ 'a' 'b' }} {{ true is boolean }} {{ 1 is number }} {{ {} is mapping }} {{ 'a' == 'a' and 1 == 1.0 }} {{ ("a", 1) | length }} {{ -1 | string }} {{ 3.0 }} {{ 1.5e0 if false else 0.00001 }}
""",
    "whitespace": """
  {% if true %}
   a
  {%- endif %}
   {{ ' b ' }}
 {#- c #}
  {# d #}
 {%+ if true %}e{% endif +%}
f {% if true -%}
   g
   {%- endif %}

{{- 'h' -}}
   i
""",
}

CHATS = [
    [{"role": "user", "content": "hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "  hi  "}],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"},
        {"role": "user", "content": "c\n<|im_end|>'d\" é"},
    ],
    [{"role": "system", "content": "only"}],
]


def environment():
    result = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise TemplateError(message)

    result.filters["tojson"] = tojson
    result.globals["raise_exception"] = raise_exception
    return result


rows = []
for name, template in TEMPLATES.items():
    for messages in CHATS:
        row = {"name": name, "template": template, "messages": messages}
        try:
            row["text"] = environment().from_string(template).render(
                messages=messages, add_generation_prompt=True, bos_token="<s>", eos_token="</s>", tools=None, documents=None)
        except TemplateError as error:
            row["refused"] = str(error)
        rows.append(row)
json.dump(rows, sys.stdout, ensure_ascii=True, indent=0)
print()
