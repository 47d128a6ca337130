"""Prompt, rewards and routes of V-IRL's navigation as in the released code, faults included (github.com/LeslieTrue/SFTvsRL,
commit 5a6ea55: `prompt_lib/prompts.py`, `utils_rl.py`, `gym/gym_virl/envs/navigation_environment.py`); the streets are ours.

Chu et al. 2025, "SFT Memorizes, RL Generalizes: A Comparative Study of Foundation Model Post-training".
"""

from __future__ import annotations

import json
import random
import re
from typing import NamedTuple

from mmrl import Case, Score
from mmrl.api.verifiers.parse import MAX_LENGTH
from mmrl_vqa.scenes import COLOURS, SHAPES

CORRECT, INCORRECT, WRONG_VIEW, USED_UP = 1.0, -1.0, -1.5, -1.0
TRIES = 2
"""Answers that are judged at each spot."""
SPOTS = 5
"""Spots of a street between two crossings, of which each is left out with the chance `LEFT_OUT`."""
LEFT_OUT = 0.5
HEADINGS = ("north", "northeast", "east", "southeast", "south", "southwest", "west", "northwest")
SIDES = {"right": 2, "left": 6}
KINDS = ("Cafe", "Bank", "Museum", "Hotel", "Library", "Market")
NOTHING, CROSSING = "No landmarks nearby", "You observe an intersection"
ACTIONS = (
    '"forward()": indicates moving forward one step\n'
    '"turn_direction(x)": indicates adjust the ego agent direction towards x direction. x could be any {words}\n'
    '"stop()": indicates the navigation is finished.'
)
ABSOLUTE = f"following 8 directions {list(HEADINGS)}"
RELATIVE = f"following {['left', 'right', 'slightly left', 'slightly right']}"
FORMAT = """
[Output]
{{
  "current observation": latest observation from the streetview grid,
  "current instruction": analyze the full instruction and identify the sentence to be executed,
  "action": the action to be taken chosen from the action space,
}}"""
"""As it is told after an error, with the doubled braces of the released code."""
PROMPT = """
[Task Description]
You are an expert in navigation. You will receive a sequence of instructions to follow while observing your surrounding stree \
tviews. You
are also provided with your observation and action history in text. Your goal is to first analyze the instruction and identify \
the next sentence to be executed. 
Then, you need to provide the action to be taken based on the current observation and instruction.

[Instruction]
{instruction}

[Observation format]
You observe a 2x2 grid of streetview images with the following headings:
[front, right
 back, left]
You need to identify if any of the landmarks in the instruction are visible in the street view grid.

[Action space]
{actions}

[Observations and actions sequence]
{history}

[Output]
{{
  "current observation": latest observation from the street view grid,
  "current instruction": analyze the full instruction and identify the sentence to be executed,
  "action": the action to be taken chosen from the action space,
}}
"""
"""The prompt with pictures, word for word."""
ANSWER = """
{{
  "current observation": "{observation}",
  "current instruction": "{instruction}",
  "action": "{action}",
}}
"""


class Spot(NamedTuple):
    """A spot of a route."""

    action: str
    """What must be done here."""
    observation: str
    """The landmark, in words."""
    crossing: bool
    instruction: str
    """The sentence that is to be carried out."""
    heading: int
    """In eighths of a turn from north."""
    onward: int
    """The heading of the way on."""
    sign: tuple[str, str] | None
    """(colour, shape) of the landmark that is seen."""
    side: str
    """Where it is: right, left, or nowhere."""


class Route(NamedTuple):
    instruction: str
    spots: tuple[Spot, ...]


def route(draw: random.Random, legs: int, absolute: bool) -> Route:
    """A route of some streets. absolute: turns are named by where they lead to, and otherwise by their side.

    As published, the side of a turn is that of the difference of two headings in degrees, so that a turn from west to north is to
    the left.
    """
    heading = before = draw.randrange(8)
    headings = [heading]
    for _ in range(legs):
        heading = (heading + draw.choice((-2, -1, 1, 2))) % 8
        headings.append(heading)
    signs = draw.sample([(colour, shape) for colour in COLOURS for shape in SHAPES], legs)
    places = [(sign, draw.choice(KINDS), draw.choice(("right", "left"))) for sign in signs]
    said = [f"{sign[0].title()} {sign[1].title()} {kind} is on your {side}" for sign, kind, side in places]
    sentences, turns = [], []
    for i, heading in enumerate(headings[1:]):
        side = _side(45 * (heading - before))
        before = heading
        turns.append(f"turn_direction({HEADINGS[heading] if absolute else side})")
        first = "First, turn" if i == 0 and legs > 1 else "Turn"
        end = "destination" if i == legs - 1 else "next intersection"
        sentences += [f"{first} {side} to face {HEADINGS[heading]}.", f"Move forward until you reach {end} where {said[i]}."]
    spots = [Spot(turns[0], NOTHING, False, sentences[0], headings[0], headings[1], None, "")]
    for i, heading in enumerate(headings[1:]):
        for _ in range(SPOTS):
            if draw.random() >= LEFT_OUT:
                spots.append(Spot("forward()", NOTHING, False, sentences[2 * i + 1], heading, heading, None, ""))
        last = i == legs - 1
        action, sentence = ("stop()", sentences[-1]) if last else (turns[i + 1], sentences[2 * i + 2])
        onward = heading if last else headings[i + 2]
        spots.append(Spot(action, said[i], True, sentence, heading, onward, places[i][0], places[i][2]))
    told = "".join(f"{number}. {sentence}\n" for number, sentence in enumerate(sentences, 1))
    return Route(told, tuple(spots))


def _side(degrees: int) -> str:
    if abs(degrees) > 45:
        return "left" if degrees < 0 else "right"
    return "slightly left" if degrees <= 0 else "slightly right"


def prompt(way: Route, at: int, absolute: bool) -> str:
    """What is asked at a spot: with all that was seen and done before, and the crossing, which is told, of this one."""
    lines = []
    for number, spot in enumerate(way.spots[:at], 1):
        lines += [f"O_{number}: {_seen(spot)}", f"A_{number}: {spot.action}"]
    here = CROSSING if CROSSING in _seen(way.spots[at]) else ""
    lines += [f"O_{at + 1}: You observe an image of 4 views; {here}", f"A_{at + 1}: ", ""]
    actions = ACTIONS.format(words=ABSOLUTE if absolute else RELATIVE)
    return PROMPT.format(instruction=way.instruction, actions=actions, history="\n".join(lines))


def _seen(spot: Spot) -> str:
    return f"{spot.observation}; {CROSSING if spot.crossing and spot.action != 'stop()' else ''}"


def gold(spot: Spot) -> str:
    return ANSWER.format(observation=spot.observation, instruction=spot.instruction, action=spot.action)


def judge(text: str, action: str, observation: str) -> Score:
    """The reward of an answer at a spot, and what is told: 1 for the right action; -1.5 if the observation of a wrong answer has
    the word intersection and the spot's words haven't, or the other way round; else -1.

    As published, the spot's words are those of its landmark, which never have the word, so that it costs 0.5 at a crossing, too.
    """
    if _field(text, "action") == action:
        return Score(CORRECT, detail="Correct action.")
    seen, there = "intersection" in _field(text, "current observation"), "intersection" in observation
    if seen != there:
        what = "not at any intersection" if seen else "at an intersection"
        told = f"you are {what}. Please avoid this observation and try again in the same format:{FORMAT}."
        return Score(WRONG_VIEW, detail=told)
    return Score(
        INCORRECT, detail=f"you make incorrect action. Please avoid this action and try again in the same format:{FORMAT}."
    )


def reward(case: Case) -> Score:
    """V-IRL's reward of the last answer of an episode, at the spot where it stands: 1, -1 or -1.5, see `judge`. The environment
    pays the answers before it, and -1 more when the tries at a spot are used up.

    `meta["spots"]` are [action, observation] of the spots; the outcome `spot` is the one where the answer was given, by default
    the first. Known exploits: the instruction says all turns, so that only where to turn must be seen.
    """
    spots = case.meta["spots"]
    return judge(case.completion, *spots[int(case.outcome.get("spot", 0))])


def _field(text: str, name: str) -> str:
    """A field of the answer as JSON, or behind its name in it; "None" without one."""
    if len(text) > MAX_LENGTH:
        return "None"
    try:
        found = json.loads(text)
        if isinstance(found, dict) and name in found:
            return found[name] if isinstance(found[name], str) else "None"
    except (ValueError, RecursionError):
        pass
    match = re.search(rf'"{name}": "([^"\n]*)"', text)
    return match[1] if match else "None"
