"""TRL's tools, environments and rewards, and verl's tools, as a task: what they give, what they are given, and how they fail."""

import datetime
import functools
import json
import types
from dataclasses import replace
from decimal import Decimal

import pytest
from mmrl_interop.tools_task import ToolsTask
from mmrl_interop.verifiers import trl as trl_rewards
from mmrl_interop.worlds.child import Refused, from_json, to_json
from mmrl_interop.worlds.tools import Worlds
from PIL import Image

from mmrl import Case, EnvironmentFailed, NoGold, UserError

FILE = '''
import asyncio, json, os, random, time
from PIL import Image

def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a * b

async def wait(name: str, seconds: float) -> list:
    """Wait.

    Args:
        name: Who waits.
        seconds: How long.
    """
    events.append(f"{name} begins")
    await asyncio.sleep(seconds)
    events.append(f"{name} ends")
    return [1, name]

events = []

def seen() -> str:
    """What happened."""
    return ", ".join(events)

def echo(text: str) -> str:
    """Say it again.

    Args:
        text: What.
    """
    return text

def misbehave(how: str):
    """Fail.

    Args:
        how: In which way.
    """
    if how == "raise": raise KeyError("gone")
    if how == "hang": time.sleep(60)
    if how == "die": os._exit(7)
    if how == "exit": raise SystemExit(3)
    if how == "part": return [{"type": "video", "video": "a.mp4"}]
    if how == "array": return [{"type": "image", "image": "a.png"}]
    if how == "empty": return [{"type": "image", "image": Image.new("RGB", (0, 9))}]
    if how == "narrow": return [{"type": "image", "image": Image.new("RGB", (1, 900))}]
    if how == "digits": return 10 ** 5000
    if how == "long": return "a" * 1_000_001
    if how == "large": return [{"type": "image_url", "image_url": {"url": "data:" + "a" * 2**26}}]
    if how == "modes": return [{"type": "image", "image": Image.new(mode, (28, 28))} for mode in ("CMYK", "F", "I", "PA")]
    if how == "half": return "a\\ud83d<|im_end|>"

def bare(a):
    return a

class Game:
    """Guess a letter; it is drawn by the global generator, as in many of TRL's examples."""
    made = 0
    def __init__(self):
        Game.made += 1
    def reset(self, image=None, **columns):
        self.letter, self.tries, self.columns, self.image = random.choice("abcdefgh"), 0, columns, image
        return f" The hint is {self.letter}."
    def guess(self, letter: str):
        """Guess the letter.

        Args:
            letter: Your guess.
        """
        self.tries += 1
        shown = Image.new("RGB", (28, 28), (self.tries,) * 3)
        return [{"type": "image", "image": shown}, {"type": "text", "text": f"No {letter}."}]
    async def size(self) -> str:
        """The size of the picture."""
        return str(self.image and self.image.size)
    def count(self) -> str:
        """How many games were made, and a number by chance."""
        return f"{Game.made} {random.random()}"
    def get_reward(self):
        return None if self.tries > 5 else float(self.tries == 1)
    def _secret(self):
        return 1

class Plain:
    """Shows a picture, and has no reward of its own."""
    def reset(self, note="Look.", **columns):
        return [{"type": "image", "image": Image.new("RGB", (56, 28))}, {"type": "text", "text": note}]
    def look(self) -> str:
        """Look."""
        return "It is dark."

class Strict(Plain):
    def reset(self, prompt):
        return "Go."

class Drifts(Plain):
    drawn = 0
    def reset(self, **columns):
        Drifts.drawn += 1
        return f"Draw {Drifts.drawn}."

class Silent(Plain):
    def reset(self, **columns):
        pass

class NoReset:
    def look(self): pass

class Broken:
    def __init__(self): raise OSError("no disk")

def look() -> str:
    """Look."""
    return ""

def told(completions, prompts, environments, answer, completion_ids, trainer_state, log_metric, note=(None,), **columns):
    log_metric("seen", 1.0)
    with open(os.environ["TOLD"], "a") as file:
        file.write(json.dumps({"completions": completions, "prompts": prompts, "answer": answer, "note": note,
                               "columns": sorted(columns), "tries": [getattr(e, "tries", None) for e in environments]},
                              default=lambda image: list(image.size)) + "\\n")
    return [0.5]

def dated(completions, when, price, **columns):
    import datetime
    return [float(when[0] + datetime.timedelta(days=1) == datetime.datetime(2026, 3, 1, 4, 5, 6, 7)) + float(price[0])]
def none(completions, **columns): return [None]
def two(completions, **columns): return [1.0, 2.0]
def nan(completions, **columns): return [float("nan")]
def breaks(completions, **columns): raise ValueError("a bug")
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("tools")
    (made / "tools.py").write_text(FILE)
    Image.new("RGB", (40, 20)).save(made / "a.png")
    rows = [
        {"prompt": [{"role": "user", "content": "What is 6 times 7?"}], "answer": 42, "note": "n"},
        {"prompt": "How large is it?", "image": "a.png", "answer": "40x20", "note": "m"},
    ]
    (made / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return made


@pytest.fixture(scope="module")
def task(folder):
    """Makes tasks; one that was made before is used again, with its process."""
    made = {}

    def make(*tools, rows=True, **options):
        options = {k: _named(folder, v) for k, v in options.items()}
        more = {"path": str(folder / "rows.jsonl"), "table": {"test_share": 0}} if rows else {}
        variables = {"TOLD": str(folder / "told.jsonl")}
        whole = {"tools": _named(folder, tools), "variables": variables, "processes": 1, **more, **options}
        if repr(whole) not in made:
            made[repr(whole)] = ToolsTask(**whole)
        return made[repr(whole)]

    yield make
    for one in made.values():
        one.worlds.close()


def _named(folder, value):
    """Names of the file's functions, in full."""
    if isinstance(value, dict):
        return {_named(folder, k): _named(folder, v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_named(folder, one) for one in value]
    return f"{folder}/tools.py:{value[1:]}" if isinstance(value, str) and value.startswith(":") else value


def call(tool, **arguments):
    return f"<tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"


def played(task, *turns, row=0):
    environment = task.environment(task.prompts("train", 0)[row])
    try:
        return [environment.step(turn) for turn in turns]
    finally:
        environment.close()


def texts(reply):
    return ["".join(p["text"] for p in m["content"] if p["type"] == "text") for m in reply.messages]


def test_functions_are_called_and_told(task):
    made = task(":multiply", ":echo", reward_funcs=[":told"])
    prompt = made.prompts("train", 0)[0]
    schemas, question = (part["text"] for part in prompt.messages[0]["content"])
    assert [json.loads(line)["function"]["name"] for line in schemas.splitlines()[1:3]] == ["multiply", "echo"]
    assert question == "What is 6 times 7?" and prompt.answer == 42 and prompt.tools == ()
    asked, wrong, end = played(
        made,
        f"<think>I {call('echo', text='no')}</think>Well, {call('multiply', a=6, b=7)}{call('echo', text='<image> a')}",
        call("nothing") + call("multiply", a=1),
        "<think>So</think>It is 42.",
    )
    assert texts(asked) == ["<tool_response>\n42\n</tool_response><tool_response>\n< image> a\n</tool_response>"]
    assert asked.outcome == {"calls": 2.0, "failed": 0.0} and not asked.terminated and asked.messages[0]["role"] == "user"
    assert "{'error': 'Tool nothing not found.'}" in texts(wrong)[0] and wrong.outcome == {"calls": 4.0, "failed": 2.0}
    assert "multiply() missing 1 required positional argument: 'b'" in texts(wrong)[0]
    assert (end.terminated, end.reward, end.messages) == (True, 0.5, ())
    assert end.outcome == {"calls": 4.0, "failed": 2.0, "told": 0.5, "return": 0.5}


def test_rewards_get_the_whole_conversation_as_in_trl(task, folder):
    made = task(":multiply", ":echo", reward_funcs=[":told"])
    (folder / "told.jsonl").unlink(missing_ok=True)
    (*_, end) = played(made, f"<think>Hm</think>Ask. {call('multiply', a=6, b=7)}", "<tool_call>{", "42")
    assert end.reward == 0.5
    (seen,) = [json.loads(line) for line in (folder / "told.jsonl").read_text().splitlines()]
    broken = {"error": "a <tool_call> is not closed by </tool_call> before the next one, or the end"}
    function = {"name": "multiply", "arguments": {"a": 6, "b": 7}}
    assert seen["completions"][0] == [
        {
            "role": "assistant",
            "content": "Ask.",
            "reasoning_content": "Hm",
            "tool_calls": [{"type": "function", "function": function}],
        },
        {"role": "tool", "name": "multiply", "content": "42"},
        {"role": "assistant", "content": "<tool_call>{"},
        {"role": "tool", "name": "", "content": str(broken)},
        {"role": "assistant", "content": "42"},
    ]
    assert seen["prompts"] == [[{"role": "user", "content": "What is 6 times 7?"}]] and seen["answer"] == [42]
    assert seen["note"] == ["n"] and seen["columns"] == ["log_extra", "prompt"], "and nothing of the task's own"


def test_async_tools_run_side_by_side_and_are_told_in_the_order_of_their_calls(task):
    made = task(":wait", ":seen", ":echo", ":misbehave", timeout_s=2.0)
    (reply,) = played(made, call("wait", name="a", seconds=0.2) + call("echo", text="b") + call("wait", name="c", seconds=0.1))
    assert texts(reply)[0].split("\n")[1::2] == ["[1, 'a']", "b", "[1, 'c']"]
    assert "a begins, c begins, c ends, a ends" in texts(played(made, call("seen"))[0])[0]


def test_environments_are_seeded_by_their_row_and_used_again(task):
    made = task(rows=False, environment_factory=":Game", train=3, test=2, schemas="template")
    train, test = made.prompts("train", 0), made.prompts("test", 0)
    assert (len(train), len(test)) == (3, 2)
    shown = {p.text for p in (*train, *test)}
    assert len(shown) > 1 and shown == {p.text for p in (*made.prompts("train", 5), *made.prompts("test", 5))}
    assert [tool["function"]["name"] for tool in train[0].tools] == ["count", "guess", "size"]
    counts = [texts(reply)[0] for _ in range(2) for reply in played(made, call("count"))]
    assert [text.split()[0] for text in counts] == ["1", "1"], "one game was made"
    assert counts[0] != counts[1], "only the start is the same in each episode"


def test_results_with_pictures_and_messages_of_tools(task):
    made = task(rows=False, environment_factory=":Game", train=3, test=2, schemas="template")
    reply, end = played(made, call("guess", letter="<image>") + call("size"), "It is over.")
    first, second = reply.messages
    assert (first["role"], first["name"]) == ("tool", "guess") and (second["role"], second["name"]) == ("tool", "size")
    assert first["content"][0]["image"].getpixel((0, 0)) == (1, 1, 1) and first["content"][1]["text"] == "No < image>."
    assert texts(reply)[1] == "None" and end.reward == 1.0 and end.outcome["Game"] == 1.0
    made = task(environment_factory=":Game")
    (reply,) = played(made, call("guess", letter="a"))
    assert [p["type"] for p in reply.messages[0]["content"]] == ["text", "image", "text"]


def test_rows_reach_reset_with_their_pictures(task):
    made = task(environment_factory=":Game")
    prompt = made.prompts("train", 0)[1]
    assert [p["type"] for p in prompt.messages[0]["content"]] == ["text", "image", "text", "text"]
    assert prompt.messages[0]["content"][-1]["text"].startswith(" The hint is ")
    (reply,) = played(made, call("size"), row=1)
    assert texts(reply) == ["<tool_response>\n(40, 20)\n</tool_response>"]
    plain = task(environment_factory=":Plain", reward_funcs=":told")
    shown = plain.prompts("train", 0)[1]
    assert [image if isinstance(image, str) else image.size for image in shown.images][1:] == [(56, 28)]
    assert shown.messages[-1]["content"][-1]["text"] == "m", "a column"


VALUES = [
    datetime.datetime(2026, 2, 28, 4, 5, 6, 7),
    datetime.datetime(2026, 2, 28, tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
    datetime.date(2026, 2, 28),
    datetime.time(4, 5),
    datetime.timedelta(days=-1, microseconds=3),
    Decimal("1.50"),
    b"\x00\xff",
    [1, 2.5, None, True, "a", {"b": [datetime.date(2026, 2, 28)]}],
    {"$type": ["date", "none"], "c": {"$type": 1}},
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_of_tables_are_the_same_in_another_process(value):
    read = from_json(json.loads(json.dumps(to_json(value))))
    assert read == value and type(read) is type(value)


def test_columns_that_json_does_not_have_reach_rewards_with_their_types(task, folder):
    """A table of Parquet has dates and decimals; TRL hands them over as they are."""
    datasets = pytest.importorskip("datasets")
    columns = {"prompt": ["Q"], "answer": ["1"], "when": [datetime.datetime(2026, 2, 28, 4, 5, 6, 7)], "price": [Decimal("0.25")]}
    datasets.Dataset.from_dict(columns).to_parquet(str(folder / "dated.parquet"))
    made = task(":echo", reward_funcs=[":dated"], path=str(folder / "dated.parquet"))
    assert played(made, "1")[0].reward == 1.25
    prompt = made.prompts("train", 0)[0]
    with pytest.raises(UserError, match=r"column own can't be given to tools \(set is no plain data\): leave it out"):
        made.start(replace(prompt, meta={**prompt.meta, "own": {1}}))
    with pytest.raises(UserError, match=r"column own can't be given to tools .*recursion"):
        made.start(replace(prompt, meta={**prompt.meta, "own": functools.reduce(lambda held, _: [held], range(5000), [])}))


@pytest.mark.parametrize(
    ("side", "most", "cut"),
    [
        ("left", 4, "(truncated)...6789"),
        ("right", 4, "0123...(truncated)"),
        ("middle", 5, "01...(truncated)...89"),
        ("middle", 10, "0123456789"),
        ("right", None, "0123456789"),
    ],
)
def test_a_long_result_is_cut_as_in_verl(task, side, most, cut):
    made = task(":echo", ":misbehave", max_tool_response_length=most, tool_response_truncate_side=side)
    told, failed = played(made, call("echo", text="0123456789"), call("misbehave", how="raise"))
    assert texts(told) == [f"<tool_response>\n{cut}\n</tool_response>"]
    assert "{'error': \"'gone'\"}" in texts(failed)[0], "errors are told whole"


def test_the_texts_of_parts_are_cut_and_rewards_read_that(task):
    made = task(rows=False, environment_factory=":Game", max_tool_response_length=3, tool_response_truncate_side="right")
    (reply,) = played(made, call("guess", letter="abc"))
    kinds = [part["text"] if part["type"] == "text" else part["type"] for part in reply.messages[0]["content"]]
    assert kinds == ["<tool_response>\n", "image", "No ...(truncated)\n</tool_response>"]


def test_rows_select_their_tools_as_in_verl(task, folder):
    rows = [{"prompt": "Q", "answer": "1", "tool_selection": of} for of in (["look", "echo"], [], None, ["none"], "echo")]
    (folder / "selected.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = task(":multiply", ":echo", ":look", path=str(folder / "selected.jsonl"), schemas="template")
    prompts = made.prompts("train", 0)
    names = [[tool["function"]["name"] for tool in prompts[n].tools] for n in range(3)]
    assert names == [["look", "echo"], ["multiply", "echo", "look"], ["multiply", "echo", "look"]]
    (reply,) = played(made, call("multiply", a=6, b=7) + call("echo", text="b"))
    assert texts(reply) == ["{'error': 'Tool multiply not found.'}", "b"], "one that isn't selected can't be called"
    assert texts(played(made, call("multiply", a=6, b=7), row=1)[0]) == ["42"]
    with pytest.raises(UserError, match="tool_selection has 'none', and the tools are multiply, echo, look: correct the row"):
        prompts[3]
    with pytest.raises(UserError, match="tool_selection is 'echo' and no list of names of tools: correct the row"):
        prompts[4]
    plain = task(":echo", environment_factory=":Game", path=str(folder / "selected.jsonl"), schemas="template")
    with pytest.raises(UserError, match="tool_selection has 'look'"):
        plain.prompts("train", 0)[0]
    (folder / "kept.jsonl").write_text(json.dumps({"prompt": "Q", "tool_selection": ["echo"]}))
    plain = task(":echo", ":look", environment_factory=":Game", path=str(folder / "kept.jsonl"), schemas="template")
    assert [t["function"]["name"] for t in plain.prompts("train", 0)[0].tools] == ["echo", "count", "guess", "size"]


def test_an_episode_that_is_cut_off_is_paid(task):
    made = task(environment_factory=":Game")
    environment = made.environment(made.prompts("train", 0)[0])
    environment.step(call("guess", letter="a"))
    reply = environment.truncate()
    environment.close()
    assert (reply.reward, reply.terminated) == (1.0, False)
    assert reply.outcome == {"calls": 1.0, "failed": 0.0, "Game": 1.0, "return": 1.0}


def test_several_environments_by_a_column(task, folder):
    rows = [{"prompt": "Look.", "note": "n", "environment": name} for name in ("plain", "game", "chess")]
    (folder / "several.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"path": str(folder / "several.jsonl"), "table": {"test_share": 0}}
    made = task(":echo", rows=False, environment_factory={"plain": ":Plain", "game": ":Game"}, schemas="template", **options)
    prompts = made.prompts("train", 0)
    assert [[t["function"]["name"] for t in prompts[n].tools] for n in (0, 1)] == [
        ["echo", "look"],
        ["echo", "count", "guess", "size"],
    ]
    with pytest.raises(UserError, match="environment = 'chess', and there are 'plain', 'game'"):
        prompts[2]
    with pytest.raises(UserError, match="nothing is paid"):  # one of the two pays nothing
        made.check_verifiers(["interop/return"])
    made.check_verifiers(["interop/return", "interop/answer"])


@pytest.mark.parametrize(("how", "message"), [("hang", ""), ("die", "its process exited with code 7"), ("exit", "SystemExit: 3")])
def test_a_tool_that_misbehaves(task, how, message):
    made = task(":wait", ":seen", ":echo", ":misbehave", timeout_s=2.0)
    (told,) = played(made, call("misbehave", how="raise"))
    assert texts(told) == ["<tool_response>\n{'error': \"'gone'\"}\n</tool_response>"] and told.outcome["failed"] == 1.0
    if how == "hang":  # the policy is told, as of any error
        (told,) = played(made, call("misbehave", how=how))
        assert "took longer than 2 s" in texts(told)[0]
    else:
        with pytest.raises(EnvironmentFailed, match=message):
            played(made, call("misbehave", how=how))
    assert "again" in texts(played(made, call("echo", text="again"))[0])[0], "the next episode goes on"


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("part", "a part of a message is {'type': 'video'"),
        ("array", "an image must be a PIL image or an array uint8"),
        ("empty", "empty image"),
        ("narrow", "too narrow, 1 x 900"),
        ("digits", "Exceeds the limit"),
        ("long", "the result has 1,000,001 characters, more than 1,000,000"),
    ],
)
def test_a_result_that_cannot_be_shown_is_told_as_an_error(task, folder, how, message):
    made = task(":misbehave", ":echo", reward_funcs=[":told"])
    (folder / "told.jsonl").unlink(missing_ok=True)
    told, end = played(made, call("misbehave", how=how) + call("echo", text="b"), "42")
    assert "{'error': " in texts(told)[0] and message in texts(told)[0] and texts(told)[0].endswith("\nb\n</tool_response>")
    assert end.outcome["calls"] == 2.0 and end.outcome["failed"] == 1.0
    (seen,) = [json.loads(line) for line in (folder / "told.jsonl").read_text().splitlines()]
    contents = [message["content"] for message in seen["completions"][0] if message["role"] == "tool"]
    assert message in contents[0] and contents[1] == "b", "rewards read what the policy was told"


def test_an_answer_that_is_too_large_loses_its_episode_alone(task):
    made = task(":misbehave", ":echo", reward_funcs=[":told"])
    other = made.environment(made.prompts("train", 0)[0])
    other.step(call("echo", text="a"))
    with pytest.raises(EnvironmentFailed, match="its answer has more than 64 MiB"):
        played(made, call("misbehave", how="large"))
    assert "b" in texts(other.step(call("echo", text="b")))[0]
    other.close()


def test_pictures_of_all_modes_and_half_a_character_are_shown(task):
    made = task(":misbehave", ":echo", reward_funcs=[":told"])
    shown, half = played(made, call("misbehave", how="modes"), call("misbehave", how="half"))
    assert [p["image"].mode for p in shown.messages[0]["content"] if p["type"] == "image"] == ["RGB"] * 4
    assert texts(half)[0] == "<tool_response>\na?< |im_end|>\n</tool_response>"


def test_rows_of_environments_need_no_prompt(task, folder):
    rows = [
        {"environment": "game", "level": 3},
        {"prompt": [{"role": "user", "content": "Look."}], "environment": "game", "level": 4},
    ]
    for name, lines in (("routes", rows[:1]), ("mixed", rows)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    options = {"rows": False, "table": {"test_share": 0}}
    made = task(environment_factory={"game": ":Game"}, path=str(folder / "routes.jsonl"), **options)
    prompt = made.prompts("train", 0)[0]
    assert prompt.messages[0]["content"][-1]["text"].startswith(" The hint is ") and len(prompt.messages) == 1
    assert made.start(prompt)["columns"] == {"level": 3}, "reset gets no prompt that the row doesn't have"
    made = task(environment_factory={"game": ":Game"}, path=str(folder / "mixed.jsonl"), **options)
    prompt = made.prompts("train", 0)[1]
    assert made.start(prompt)["columns"] == {"level": 4, "prompt": [{"role": "user", "content": "Look."}]}
    with pytest.raises(UserError, match=r"no form of .* has the columns environment, level"):
        task(":echo", path=str(folder / "routes.jsonl"), **options)


def test_rewards_get_what_reset_showed_behind_the_prompt(worlds):
    said = [{"role": "system", "content": "S."}, {"role": "user", "content": "Q."}]
    session = worlds(environments={"": ":Game"}, rewards=[":none"]).open()
    shown = session.start({"prompt": said}, [], 0)["parts"][0]["text"]
    assert session.prompt == [said[0], {"role": "user", "content": f"Q.{shown}"}] and said[1]["content"] == "Q."
    session = worlds(environments={"": ":Plain"}).open()
    session.start({}, [], 0)
    assert [part["type"] for part in session.prompt[0]["content"]] == ["text", "image", "text"]
    session = worlds(tools=[":echo"]).open()
    session.start({"prompt": said}, [], 0)
    assert session.prompt == said


@pytest.fixture
def worlds(folder):
    """Makes what a process has, in this one."""
    made = []

    def make(tools=(), environments=(), rewards=()):
        named = {"tools": tools, "environments": dict(environments), "rewards": dict.fromkeys(rewards, 1.0)}
        made.append(Worlds(**{option: _named(folder, value) for option, value in named.items()}))
        return made[-1]

    yield make
    for one in made:
        one.loop.close()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (":none", "none returned None: there is no reward"),
        (":two", "returned '.*' and no list of one reward"),
        (":nan", "nan returned nan"),
        (":breaks", "a bug"),
    ],
)
def test_a_reward_that_is_none_loses_the_episode(worlds, function, message):
    session = worlds(rewards=[function]).open()
    session.start({}, [], 0)
    with pytest.raises(ValueError, match=message):
        session.finish({"role": "assistant", "content": "42"})


def test_a_reward_of_none_beside_another_is_left_out(worlds):
    session = worlds(environments={"": ":Game"}, rewards=[":none"]).open()
    session.start({}, [], 0)
    assert session.finish(None) == {"reward": 0.0, "outcome": {"Game": 0.0}}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tools": [":bare"]}, "tool bare has no schema .*: give it types and a docstring in Google's form"),
        ({"tools": [":Game"]}, "is no function: give a class as environment_factory"),
        ({"tools": [":echo", ":echo"]}, "two tools have one name"),
        ({"tools": [":look"], "environments": {"": ":Plain"}}, "environment '' has a method look, as a tool is called"),
        ({"environments": {"": ":NoReset"}}, "has no method reset"),
        ({"environments": {"a": ":Broken"}}, r"environment 'a' can't be made \(OSError: no disk\): correct it"),
    ],
)
def test_what_cannot_be_used_is_refused(worlds, given, message):
    with pytest.raises(Refused, match=message):
        worlds(**given)


def test_an_environment_that_failed_is_not_used_again(worlds):
    made = worlds(environments={"": ":Game"}, rewards=[":none"])
    first = made.open()
    first.start({}, [], 0)
    game = first.environment
    first.close()
    second = made.open()
    second.start({}, [], 0)
    assert second.environment is game
    game.tries = 6
    with pytest.raises(ValueError, match="Game and none returned None"):
        second.finish(None)
    second.close()
    third = made.open()
    third.start({}, [], 0)
    assert third.environment is not game


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "nothing can be called: set tools"),
        ({"tools": [":multiply"], "rows": False}, "there are no prompts: set path"),
        ({"environment_factory": {"a": ":Game"}, "rows": False}, "several environments need a table"),
        ({"tools": [":nothing"]}, "has no function 'nothing'"),
        ({"tools": 3}, "tools = 3 must be a list of names"),
        ({"tools": ["multiply"]}, "names no function: write path.py:function"),
        ({"environment_factory": 3}, "environment_factory = 3 must be"),
        ({"environment_factory": {}}, "environment_factory = {} must be"),
        ({"tools": [":echo"], "reward_funcs": {":told": "much"}}, "the weight of .* is 'much' and no number"),
        ({"tools": [":echo"], "form": "xml"}, "form = 'xml' is unknown"),
        ({"tools": [":echo"], "schemas": "none"}, "schemas = 'none' is unknown"),
        ({"tools": [":echo"], "timeout_s": 0}, "timeout_s = 0 must be"),
        ({"tools": [":echo"], "max_tool_response_length": 0}, "max_tool_response_length = 0 must be"),
        ({"tools": [":echo"], "tool_response_truncate_side": "top"}, "tool_response_truncate_side = 'top' is unknown"),
        ({"tool_config_path": "none.yaml"}, "tool_config_path = 'none.yaml' does not exist"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(task, options, message):
    tools = options.pop("tools", [])
    with pytest.raises(UserError, match=message):
        task(*tools, **options) if isinstance(tools, list) else ToolsTask(path="rows.jsonl", tools=tools)


def test_what_reset_does_not_take_or_show_is_said_of_its_row(task):
    with pytest.raises(UserError, match=r"train-0 can't be shown: tools: TypeError: .*reset.* unexpected keyword argument"):
        task(environment_factory=":Strict").prompts("train", 0)[0]
    with pytest.raises(UserError, match="reset shows nothing, and there is no prompt"):
        task(rows=False, environment_factory=":Silent").prompts("train", 0)[0]


def test_an_environment_that_starts_otherwise_loses_its_episode(task):
    made = task(rows=False, environment_factory=":Drifts", reward_funcs=":told")
    with pytest.raises(EnvironmentFailed, match="reset showed something else than before"):
        played(made, "a")


def test_no_gold_is_known_and_verifiers_read_the_columns(task):
    made = task(":echo")
    prompt = made.prompts("train", 0)[0]
    with pytest.raises(NoGold):
        made.gold(prompt)
    assert made.scored_by == "interop/answer" and task(":echo", reward_funcs=[":told"]).scored_by == ""
    seen = {}
    rewards = types.ModuleType("own_rewards")
    rewards.seen = lambda completions, **columns: seen.update(columns) or [1.0]
    import sys

    sys.modules["own_rewards"] = rewards
    trl_rewards(Case(completion="a", answer=42, meta=prompt.meta), ["own_rewards:seen"])
    assert {"answer", "note"} <= {*seen} and not [name for name in seen if name.startswith("_")]
