"""Writes tests/golden/rewards-generalpoints.jsonl: what the released environment of GeneralPoints pays and says.

    git clone https://github.com/LeslieTrue/SFTvsRL && git -C SFTvsRL checkout 5a6ea55
    python tests/support/golden_generalpoints.py SFTvsRL

It needs gymnasium, numpy, torch, Pillow and PyYAML. Each row is one answer to one hand, judged by `step` of the environment
itself, with its own solver; only the drawing of the picture is left out.
"""

from __future__ import annotations

import importlib.util
import json
import random
import sys
import types
from pathlib import Path

OUT = Path(__file__).parents[1] / "golden" / "rewards-generalpoints.jsonl"
HOW = "ran LeslieTrue/SFTvsRL @5a6ea55: GeneralPointEnv_oneline.step"
HANDS = [
    (("A", "3", "K", "6"), "10"),
    (("3", "3", "8", "8"), "10"),
    (("6", "6", "A", "3"), "10"),
    (("4", "7", "8", "8"), "10"),
    (("J", "Q", "K", "A"), "11-13"),
    (("5", "5", "5", "A"), "10"),
    (("2", "7", "10", "Q"), "11-13"),
]


def environment(checkout: Path) -> type:
    for name in ("box", "yaml", "tqdm", "gymnasium.envs"):  # only read by parts that are not run
        try:
            importlib.import_module(name)
        except ImportError:
            stub = types.ModuleType(name)
            vars(stub).update(Box=dict, tqdm=None)
            sys.modules[name] = stub
    sys.path.insert(0, str(checkout))
    spec = importlib.util.spec_from_file_location("oneline", checkout / "gym/gym_cards/envs/general_points_oneline.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    class WithoutPicture(module.GeneralPointEnv_oneline):  # type: ignore[misc, name-defined]
        def _get_observation(self):
            return None

    return WithoutPicture


def hand(kind: type, cards: tuple[str, ...], faces: str):
    """The environment with these cards on the table."""
    env = kind.__new__(kind)
    values = [1 + ("A", *map(str, range(2, 11)), "J", "Q", "K").index(card) for card in cards]
    env.cards_num = [min(v, 10) for v in values] if faces == "10" else values
    env.cards = env.cards_without_suit = list(cards)
    env.target_points, env.language_only, env.remaining_step = 24, False, 5
    env.formula, env.remaining_nums, env.verify_info = [], [], None
    assert env.solve(env.cards_num), f"{cards} make no 24"
    return env


def written(formula: str, cards: object) -> str:
    return f'\n{{\n  "cards": {cards},\n  "number": [1, 2, 3, 4],\n  "formula": "{formula}",\n}}'


def answers(env, cards: tuple[str, ...], rng: random.Random) -> list[str]:
    right = rng.choice(sorted(s for s in env.solution if "(" in s) or sorted(env.solution))
    a, b, c, d = map(str, env.cards_num)
    named = list(cards)
    wrong = f"{a}+{b}+{c}+{d}" if f"{a}+{b}+{c}+{d}" not in env.solution else f"{a}*{b}*{c}*{d}"
    formulas = [
        *(
            right,
            f"{right}=24",
            f"{right}=25",
            wrong,
            f"{wrong}=24",
            right[:-1],
            right[1:],
            f"({right})",
            f"(({right}))",
            f"({right}",
        ),
        *(
            f"{a}+{b}+{c}",
            f"{a}+{b}+{c}+{c}",
            f"{a}+{b}+{c}+14",
            f"{a}+{b}+15+14",
            f"{right}+{a}",
            f"{right}*1",
            f"{right}+0",
            "",
        ),
        *(f"-{right}", f"{right}+", f"{right})", f"{a} + {b} + {c} + {d}", f"{a}×{b}", f"{a}**{b}+{c}+{d}", f"{a}//{b}+{c}+{d}"),
        *(f"{a}({b}+{c}){d}", f"()+{right}", f"{a}/({b}-{b})", f"0{right}", "=", "24", "abc", ")(", f"{a}+*{b}-/{c}*(){d}"),
        *(f"{a}*{b}/({c}-{d}", f"{a}+({b}+({c}+{d}", f"({a}+{b})*({c}+{d}", f"{a}+{b}+({c}+{d}"),
    ]
    found = [written(each, named) for each in formulas]
    other = ["2" if cards[0] != "2" else "9", *cards[1:]]
    spellings = [
        *(other, named[:3], [*named, named[0]], [], named[::-1], "[" + ", ".join(named) + "]", "[" + ",".join(named) + "]"),
        *(json.dumps(named), env.cards_num, [str(v) for v in env.cards_num], "['" + "','".join(named) + "']", "none"),
    ]
    found += [written(right, each) for each in spellings]
    found += [
        json.dumps({"cards": named, "number": env.cards_num, "formula": right}),
        json.dumps({"cards": str(named), "number": env.cards_num, "formula": f"{right}=24"}),
        json.dumps({"cards": ", ".join(named), "formula": right}),
        json.dumps({"formula": right}),
        *(right, "", f'"formula": "{right}"', f'"cards": {named}', f'"cards": {named} "formula": "\n{right}"'),
        f'"cards": {named} "formula": "{right}" and "formula": "24"',
        f'"cards": [] "cards": {named} "formula": "{right}"',
    ]
    signs = "+-*/()" + "".join(map(str, env.cards_num))
    for _ in range(12):  # a right formula with one sign less, more, or another
        i = rng.randrange(len(right))
        cut, more = rng.choice([(i + 1, ""), (i, rng.choice(signs)), (i + 1, rng.choice(signs))])
        found.append(written(right[:i] + more + right[cut:], named))
    return found


def main() -> None:
    kind, rng, rows = environment(Path(sys.argv[1])), random.Random(0), []
    for cards, faces in HANDS:
        env = hand(kind, cards, faces)
        for text in dict.fromkeys(answers(env, cards, rng)):
            env.remaining_step = 5
            _, reward, _, _, info = env.step(text)
            row = {"verifier": "vqa/points24@generalpoints", "completion": text, "answer": None}
            row |= {
                "meta": {"cards": list(cards), "faces": faces},
                "reward": float(reward),
                "detail": info["Verify Info"],
                "how": HOW,
            }
            rows.append(json.dumps(row, ensure_ascii=False))
    OUT.write_text("\n".join(rows) + "\n", encoding="utf-8")
    print(f"{OUT}: {len(rows)} rows")


if __name__ == "__main__":
    main()
