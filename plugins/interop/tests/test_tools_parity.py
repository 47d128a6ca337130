"""The same functions, environments and completions under TRL's own loop of tool calls and under mmrl: what the policy is told and
what rewards get is equal; and verl's tools in verl's interpreter."""

import asyncio
import contextlib
import importlib.util
import json
import subprocess
import threading
from types import SimpleNamespace

import pytest
from mmrl_interop.tools_task import ToolsTask
from mmrl_interop.worlds.tools import cut

from mmrl.api.verifiers import tool_calls

pytestmark = pytest.mark.slow
FILE = '''
import asyncio, json, os
from PIL import Image

def divide(a: float, b: float) -> float:
    """Divide.

    Args:
        a: What.
        b: By what.
    """
    return a / b

async def later(text: str) -> dict:
    """Say it later.

    Args:
        text: What.
    """
    await asyncio.sleep(0.01)
    if text == "raise": raise ValueError("a bug")
    return {"said": text}

class Room:
    def reset(self, size, **columns):
        self.size, self.seen = size, 0
        return f" The room has {size} places."
    def look(self, place: int):
        """Look.

        Args:
            place: Where.
        """
        self.seen += 1
        if not 0 <= place < self.size: raise ValueError(f"place {place} is outside")
        return [{"type": "image", "image": Image.new("RGB", (28 + place, 28))}, {"type": "text", "text": f"Place {place}"}]
    def places(self) -> dict:
        """All of them."""
        return {"places": list(range(self.size))}
    def get_reward(self):
        return self.seen / self.size

def length(completions, environments, **columns):
    if "TOLD" in os.environ:
        json.dump(completions, open(os.environ["TOLD"], "w"), default=lambda image: list(image.size))
    return [float(len(c)) if e.seen else None for c, e in zip(completions, environments)]
'''
EPISODES = [
    [[("divide", {"a": 6, "b": 4})], [("look", {"place": 1}), ("places", {})], "It is dark."],
    [[("divide", {"a": 6, "b": 0}), ("nothing", {}), ("look", {"place": 9})], [("later", {"text": "raise"})], ""],
    [[("look", {"size": 1})], [("later", {"text": "x"}), ("later", {"text": "y"})], [("divide", {"a": "6", "b": 4})], "Done."],
    ["Nothing is called."],
]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("parity") / "room.py"
    path.write_text(FILE)
    return path


def messages_of(turn):
    """A turn as TRL parses it."""
    if isinstance(turn, str):
        return {"role": "assistant", "content": turn}
    called = [{"type": "function", "function": {"name": name, "arguments": dict(given)}} for name, given in turn]
    return {"role": "assistant", "content": "", "tool_calls": called}


def by_trl(monkeypatch, file, episode):
    """(the completion that rewards get, the rewards, calls, failures) of TRL's own code."""
    trainer = pytest.importorskip("trl.trainer.grpo_trainer")
    import torch

    spec = importlib.util.spec_from_file_location("room", file)
    room = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(room)
    environment = room.Room()
    environment.reset(size=4)
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    left = iter(episode[1:])
    monkeypatch.setattr(trainer, "parse_response", lambda *args, **more: messages_of(next(left)))
    config = SimpleNamespace(max_position_embeddings=10**6)
    own = SimpleNamespace(
        max_tool_calling_iterations=8,
        _sync_tool_dicts=[{"divide": room.divide, "look": environment.look, "places": environment.places}],
        _async_tool_dicts=[{"later": room.later}],
        async_loop=loop,
        _get_tool_suffix_ids=lambda messages: [0],
        use_vllm=False,
        _is_vlm=False,
        model=SimpleNamespace(config=config),
        max_completion_length=10**6,
        _generate_single_turn=lambda prompts, *args, **more: ([[1] for _ in prompts], None),
        environment_factories=None,
        tools=[],
        _tokenizer=None,
    )
    completions = [[messages_of(episode[0])]]
    called = trainer.GRPOTrainer._tool_call_loop(own, [[]], [[0]], [[1]], completions, None, None, {})
    own = SimpleNamespace(
        accelerator=SimpleNamespace(device="cpu"),
        reward_funcs=[lambda environments, **more: [one.get_reward() for one in environments], room.length],
        reward_processing_classes=[None, None],
        reward_func_names=["Room", "length"],
        environments=[environment],
        state=None,
        _log_completion_extra=None,
        _log_metric=None,
        _metrics={},
        _current_train_step_time=0.0,
        model=SimpleNamespace(training=True),
        args=SimpleNamespace(report_to=[]),
    )
    monkeypatch.setattr(trainer, "gather", lambda x: x)
    monkeypatch.setattr(trainer, "profiling_context", lambda *args: contextlib.nullcontext())
    monkeypatch.setattr(trainer, "logger", SimpleNamespace(warning=lambda *args: None))
    rewards = trainer.GRPOTrainer._calculate_rewards.__wrapped__(own, [{"size": 4}], [[]], completions, [[1]])
    loop.call_soon_threadsafe(loop.stop)
    plain = json.loads(json.dumps(completions, default=lambda image: list(image.size)))
    return plain, torch.nansum(rewards, 1).item(), *called[4:6]


@pytest.mark.parametrize("number", range(len(EPISODES)))
def test_a_conversation_is_trl_s(monkeypatch, tmp_path, file, number):
    episode = EPISODES[number]
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"prompt": "Look around.", "size": 4}))
    task = ToolsTask(
        path=str(rows),
        tools=[f"{file}:divide", f"{file}:later"],
        environment_factory=f"{file}:Room",
        reward_funcs=[f"{file}:length"],
        schemas="template",
        table={"test_share": 0},
        variables={"TOLD": str(tmp_path / "told.json")},
        processes=1,
    )
    try:
        prompt = task.prompts("train", 0)[0]
        assert prompt.text == "Look around.\n The room has 4 places."
        environment = task.environment(prompt)
        written = [
            turn if isinstance(turn, str) else "".join(tool_calls.write(tool_calls.Call(*call), "hermes") for call in turn)
            for turn in episode
        ]
        replies = [environment.step(turn) for turn in written]
        environment.close()
    finally:
        task.worlds.close()
    (completion,), reward, calls, failures = by_trl(monkeypatch, file, episode)
    told = json.loads((tmp_path / "told.json").read_text())
    assert told == [completion]
    assert replies[-1].terminated and replies[-1].reward == pytest.approx(reward, abs=1e-6)
    assert (replies[-1].outcome["calls"], replies[-1].outcome["failed"]) == (calls, failures)
    shown = [m for reply in replies for m in reply.messages]
    assert [(m["role"], m["name"]) for m in shown] == [(m["role"], m["name"]) for m in completion if m["role"] == "tool"]


VERL = '''
from PIL import Image
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse

class Crop(BaseTool):
    """verl's class: an instance for each call."""
    open = {}
    async def create(self, instance_id=None, **kwargs):
        number = f"n{len(self.open)}"
        self.open[number] = kwargs["create_kwargs"]
        return number, ToolResponse()
    async def execute(self, instance_id, parameters, **kwargs):
        if parameters["box"] == "raise": raise ValueError("outside")
        size = self.open[instance_id].get("size", self.config["size"])
        return ToolResponse(text=f"A part of {size}.", image=[Image.new("RGB", (size, size))]), 0.25, {}
    async def release(self, instance_id, **kwargs):
        del self.open[instance_id]

class Crops(Crop):
    """Keeps the number of its calls where verl's tools keep what belongs to the episode."""
    async def execute(self, instance_id, parameters, agent_data, **kwargs):
        own = agent_data.extra_fields
        own["calls"] = own.get("calls", 0) + 1
        roles = [message["role"] for message in agent_data.messages]
        about = f"{own['calls']} {roles} {[i.size for i in agent_data.image_data or []]} {agent_data.user_turns}"
        return ToolResponse(text=f"{about} {sorted(agent_data.tools_kwargs)}"), None, {}
'''
FUNCTION = '''
from verl.tools.function_tool import function_tool

@function_tool("search")
def search(query: str) -> str:
    """Search.

    Args:
        query: What.
    """
    return f"Nothing on {query}"
'''
CONFIG = """
tools:
  - class_name: crop_tool.Crop
    config: {size: 56, type: native}
    tool_schema:
      type: function
      function:
        name: crop
        description: Crop the picture.
        parameters:
          type: object
          properties: {box: {type: string, description: Where.}}
          required: [box]
  - class_name: crop_tool.Crops
    config: {type: native}
    tool_schema: {type: function, function: {name: crops, description: Count.}}
"""


def test_verl_s_tools_in_its_own_interpreter(tmp_path, python_of):
    (tmp_path / "crop_tool.py").write_text(VERL)
    (tmp_path / "functions.py").write_text(FUNCTION)
    (tmp_path / "tools.yaml").write_text(CONFIG)
    rows = [
        {"prompt": [{"role": "user", "content": "Look."}], "data_source": "own", "reward_model": {"ground_truth": "dark"}},
        {"prompt": [{"role": "user", "content": "Look."}], "data_source": "own", "reward_model": {"ground_truth": "dark"}},
    ]
    rows[0]["extra_info"], rows[1]["extra_info"] = {}, {"tools_kwargs": {"crop": {"create_kwargs": {"size": 28}}}}
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = ToolsTask(
        path=str(tmp_path / "rows.jsonl"),
        tools=[f"{tmp_path}/functions.py:search"],
        tool_config_path=str(tmp_path / "tools.yaml"),
        table={"test_share": 0},
        python=str(python_of("verl")),
        variables={"PYTHONPATH": str(tmp_path)},
        processes=1,
        timeout_s=120,
    )
    try:
        prompts = task.prompts("train", 0)
        assert '"name": "crop"' in prompts[0].text and '"name": "search"' in prompts[0].text
        for prompt, size in zip(prompts, (56, 28), strict=True):
            environment = task.environment(prompt)
            cropped, others, counted, end = (
                environment.step(tool_calls.write(tool_calls.Call("crop", {"box": "here"}), "hermes")),
                environment.step(
                    "".join(
                        tool_calls.write(tool_calls.Call(*call), "hermes")
                        for call in (("crop", {"box": "raise"}), ("search", {"query": "mice"}))
                    )
                ),
                environment.step(2 * tool_calls.write(tool_calls.Call("crops", {}), "hermes")),
                environment.step("dark"),
            )
            environment.close()
            parts = cropped.messages[0]["content"]
            assert [part["image"].size for part in parts if part["type"] == "image"] == [(size, size)]
            assert parts[-1]["text"] == f"A part of {size}.\n</tool_response>"
            said = "".join(part["text"] for part in others.messages[0]["content"])
            assert "{'error': 'outside'}" in said and "Nothing on mice" in said
            roles = ["user", "assistant", "tool", "assistant", "tool", "tool", "assistant"]
            known = f"{roles} [({size}, {size})] 2 {['crop'] if size == 28 else []}"
            said = "".join(part["text"] for part in counted.messages[0]["content"])
            assert f"1 {known}" in said and f"2 {known}" in said, "what is kept is the episode's own"
            assert (
                end.terminated
                and end.reward == 0.0
                and end.outcome == {"calls": 5.0, "failed": 1.0, "tool_reward": 0.25, "return": 0.0}
            )
    finally:
        task.worlds.close()


CUT = """
import asyncio, json, sys
from types import SimpleNamespace
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.tools.schemas import ToolResponse

class Said:
    async def create(self, **kwargs): return "0", None
    async def execute(self, number, given, **kwargs): return ToolResponse(text=given["text"]), 0.0, {}
    async def release(self, number): pass

loop, found = ToolAgentLoop.__new__(ToolAgentLoop), []
for loop.tool_response_truncate_side, loop.max_tool_response_length, text in json.loads(sys.argv[1]):
    loop.tools = {"said": Said()}
    asked = SimpleNamespace(name="said", arguments=json.dumps({"text": text}))
    found.append(asyncio.run(loop._call_tool(asked, {}, SimpleNamespace()))[0].text)
print(json.dumps(found))
"""


def test_results_are_cut_as_by_verl(python_of):
    given = [
        (side, most, text) for side in ("left", "middle", "right") for most in (2, 5, 9, 10) for text in ("0123456789", "abé")
    ]
    done = subprocess.run([python_of("verl"), "-c", CUT, json.dumps(given)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [cut(text, most, side) for side, most, text in given]
