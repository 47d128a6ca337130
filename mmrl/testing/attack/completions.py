"""Completions that verifiers must bear: long, nested, with odd numbers, half tags, other scripts and code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from mmrl.api.episodes import Conversation
from mmrl.api.types import Case, Turn
from mmrl.judge import local_judge
from mmrl.testing.attack.campaign import Attempt

MEGABYTE = 1_000_000
BATCH = 32
"""Completions that are scored together."""
MOST_LATE = 5
"""A verifier that misses this many deadlines is not tried any further: each costs seconds."""
REPEATED = {
    **{
        f"many {unit!r}": unit
        for unit in ("a", "(", "[", "{", "<", "\\", '"', "'", "-", "0", " ", "\n", "\t", "`", "$", "&", "|")
    },
    **{
        f"many {unit!r}": unit
        for unit in ("1,", "[1,2,3,4],", "<answer>", "</answer>", "<think>", "```json\n", "\\boxed{", "\\frac{1}{")
    },
    **{
        f"many {unit!r}": unit
        for unit in ("A) ", "yes ", "1.0 to 2.0 ", "click(1,2)\n", "&lt;", "e\u0301", "\U0001f468\u200d", "\u202e", "\0")
    },
    **{
        f"many {unit!r}": unit
        for unit in ("\ufeff", "\uff11", "\u0663", "½", "ß", "İ", "red square ", "<circle r='1'/>", '"a":', "1e9 ")
    },
}
NESTED = {
    **{
        f"nested {o}": (o, c)
        for o, c in (("[", "]"), ("(", ")"), ("{", "}"), ('{"a":', "}"), ("\\frac{1}{", "}"), ("\\sqrt{", "}"))
    },
    **{
        f"nested {o}": (o, c)
        for o, c in (("<g>", "</g>"), ("<div>", "</div>"), ("<answer>", "</answer>"), ("\\left(", "\\right)"))
    },
}
NUMBERS = [
    *(
        "1" + "0" * 400_000,
        "1e400000",
        "-1e400000",
        "1e-400000",
        "-0",
        "NaN",
        "Infinity",
        "-Infinity",
        "inf",
        "1/0",
        "0/0",
        "9**9**9**9",
    ),
    *(
        "9^{9^{9^{9}}}",
        "99999999!",
        "$\\sum_{n=1}^{10^{10}} n$",
        "$\\prod_{k=1}^{100000} k$",
        "0xFFFFFFFFFFFFFFFF",
        "0b" + "1" * 100_000,
    ),
    *(
        "٣",
        "１２",
        "Ⅳ",
        "½",
        "²",
        "①",
        "三",
        "1.7976931348623157e308",
        "5e-324",
        "0." + "3" * 150_000,
        "0" * 150_000 + "7",
        "1_000",
        "+7",
    ),
    *(
        "50%",
        "$7",
        "7,",
        "3+4j",
        "3+4",
        "1+" * 5_000 + "1",
        "1<<1000000000",
        "\\sqrt{-1}",
        "$(x+y+z+w)^{200}$",
        "$e^{e^{e^{e^{10}}}}$",
    ),
    *(
        "$\\{" + ",".join(map(str, range(2000))) + "\\}$",
        "$(-\\infty,\\infty)$",
        "$\\frac{" + "7" * 5000 + "}{" + "3" * 5000 + "}$",
    ),
]
JSON = [
    *("[NaN, NaN, NaN, NaN]", "[-Infinity,-Infinity,Infinity,Infinity]", "[-1e308,-1e308,1e308,1e308]", "[0,0,0,0]", "[9,9,0,0]"),
    *(
        '["0","0","100","100"]',
        "[true,false,true,true]",
        "[null,null,null,null]",
        "[[[[0,0,10,10]]]]",
        "[1,2,3]",
        "[1,2,3,4,5,6]",
    ),
    *(
        '[{"bbox_2d":[NaN,0,1,1],"label":"a"}]',
        '{"bbox_2d":[0,0,1e400,1e400]}',
        '{"bbox_2d":"[0,0,1,1]"}',
        '[{"bbox_2d":{},"label":[]}]',
    ),
    *(
        '[{"bbox_2d":[0,0,9,9],"label":{"x":[1]}}]',
        '{"__proto__":{"a":1},"__class__":"x"}',
        "[]",
        "{}",
        "null",
        "true",
        '"[1,2,3,4]"',
    ),
    *("[1,2,3,4][5,6,7,8]", "[1,2,3,4],", "[1,2,3,4] // x", "{1,2,3,4}", '"\\ud800\\udc00\\ud800"', '{"a":1,"a":2}', "[-1,-1]"),
    *(
        "[" + "9" * 5000 + ",0,1,1]",
        "[0, 100000]",
        '{"start": 0, "end": 1e9}',
        json.dumps({str(i): [0, 0, 999, 999] for i in range(500)}),
    ),
    *(
        json.dumps([[i, i, i + 9, i + 9] for i in range(2000)]),
        json.dumps(list(range(5000))),
        '{"action": "click", "coordinate": [1e9, -1]}',
    ),
    *('{"type":"bar","labels":["a"],"series":[{"name":"","values":[NaN]}]}', '{"action":"type","text":"' + "a" * 5000 + '"}'),
]
TAGS = [
    *(
        "",
        " ",
        "\n",
        "<answer",
        "<answer>",
        "</answer>",
        "</answer><answer>",
        "<answer></answer>",
        "<answer> </answer>",
        "<answer>A",
        "A</answer>",
    ),
    *(
        "<answer>A</answer><answer>B</answer>",
        "<answer><answer>A</answer></answer>",
        "<ANSWER>A</ANSWER>",
        "<answer >A</answer >",
    ),
    *(
        "＜answer＞A＜/answer＞",
        "<answer>A</think></answer>",
        "<think><answer>A</answer>",
        "</think><answer>A</answer>",
        "<think>A",
    ),
    *("&lt;answer&gt;A&lt;/answer&gt;", "<answer><![CDATA[A]]></answer>", "<answer>\0A\0</answer>", "<answer>\u200bA</answer>"),
    *(
        "<answer>\ud800</answer>",
        "<answer>\u202eA</answer>",
        "<answer>А</answer>",
        "<answer>[A]</answer>",
        "<answer>**A**</answer>",
    ),
    *("<answer>None</answer>", "<answer>nan</answer>", "<answer>-</answer>", "<answer>?</answer>", "<answer>1 2\n3 4</answer>"),
    *(
        "<tool_call>{}</tool_call>",
        "<|im_end|>",
        "<|endoftext|>",
        "[INST]",
        "<image><video>",
        "\x1b[2J\x1b]0;x\x07",
        "\r\b\x1c\x1d\x85\u2028",
    ),
]
CODE = [
    *(
        "__import__('os').system('true')",
        "exit()",
        "eval('9**9**9')",
        "[].__class__.__base__.__subclasses__()",
        "'a'*10**10",
        "[0]*10**10",
    ),
    *(
        "while True: pass",
        ":(){ :|:& };:",
        "$(true)",
        "'; DROP TABLE x; --",
        "{{7*7}}",
        "cos\nsystem\n(S'true'\ntR.",
        "f'{9**9**9}'",
    ),
    *(
        "%s%s%n",
        "%999999999d",
        "{0.__class__.__mro__}",
        "{0:999999999}",
        "\\N{BULLET}",
        "../../../../etc/passwd",
        "file:///etc/passwd",
    ),
    *("/dev/zero", "a" * 5000, "a/" * 2000, "<script>alert(1)</script>", '["done", 0, [[1.0, {}, "", []]], true]', "reward = 1"),
]
SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 56 56">'
DRAWN = [
    SVG + '<path d="M0 0L9 9z"/>' * 100_000 + "</svg>",
    SVG + '<path stroke="red" stroke-width="2" fill="none" d="M0 0' + "a1e5 1e5 0 1 1 1 1" * 570 + '"/></svg>',
    SVG + '<g id="a"><use href="#a"/></g></svg>',
    SVG
    + '<filter id="f">'
    + '<feGaussianBlur stdDeviation="99999"/>' * 100
    + '</filter><rect width="99" height="99" filter="url(#f)"/></svg>',
    SVG + '<line x2="99999" stroke="red" stroke-dasharray="0.0001"/></svg>',
    SVG + '<image href="file:///etc/passwd" width="9" height="9"/></svg>',
    '<svg xmlns="http://www.w3.org/2000/svg" width="1e9" height="1e9"><rect width="1e9" height="1e9"/></svg>',
    '<!DOCTYPE s [<!ENTITY a "aaaaaaaaaa">'
    + "".join(f'<!ENTITY a{i} "{(f"&a{i - 1};" if i else "&a;") * 10}">' for i in range(12))
    + "]>"
    '<svg xmlns="http://www.w3.org/2000/svg"><text>&a11;</text></svg>',
    "<style>*{background:url(http://127.0.0.1:9/x)}</style><p>x</p>",
    "<div style='width:1e9px;height:1e9px;box-shadow:0 0 9999px red'>x</div>",
    "<div>" * 20_000,
]
WRAPS = {"bare": "{}", "tagged": "<think>x</think><answer>{}</answer>", "fenced": "```json\n{}\n```"}


@cache
def hostile_completions() -> Mapping[str, str]:
    """Name -> completion: each text bare, between tags and in a fence."""
    long = {name: unit * (MEGABYTE // len(unit)) for name, unit in REPEATED.items()}
    nested = {name: o * 10_000 + "1" + c * 10_000 for name, (o, c) in NESTED.items()}
    lists = {"number": NUMBERS, "JSON": JSON, "tags": TAGS, "code": CODE, "drawing": DRAWN}
    numbered = {f"{what} {i}": text for what, texts in lists.items() for i, text in enumerate(texts)}
    return {
        f"{name}, {how}": wrap.replace("{}", text)
        for name, text in (long | nested | numbered).items()
        for how, wrap in WRAPS.items()
    }


def attack_verifier(
    verifier: str, cases: Sequence[Case], options: Mapping[str, Any] | None = None, completions: Mapping[str, str] | None = None
) -> Iterator[Attempt]:
    """Score hostile completions for each case in a judge. It held if the score is a number in the range: whatever a model writes
    is worth something, if nothing. completions: name -> text, by default `hostile_completions`."""
    found = hostile_completions() if completions is None else completions
    with local_judge({verifier: options or {}}) as judge:
        judge.ready()
        for case in cases:
            late = 0
            for names in _batches(list(found)):
                scores = judge.run(verifier, [_with(case, found[name]) for name in names])
                for name, score in zip(names, scores, strict=True):
                    late += score.value is None and "deadline" in score.detail
                    yield Attempt(f"{verifier} on {name}", "" if score.value is not None else score.detail)
                if late >= MOST_LATE:
                    yield Attempt(f"{verifier} on what is left", f"not tried, because {late} completions took too long")
                    break


def _batches(names: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(names), BATCH):
        yield names[start : start + BATCH]


def _with(case: Case, text: str) -> Case:
    """The case with another completion; where a verifier reads the episode, its last turn has the text."""
    if not isinstance(case.rollout, Conversation):
        return replace(case, completion=text)
    turn = Turn(observed_ids=(), token_ids=(), logprobs=(), text=text)
    return replace(case, completion=text, rollout=replace(case.rollout, turns=(turn,)))
