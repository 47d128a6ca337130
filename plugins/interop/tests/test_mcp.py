"""Tools of servers that speak the Model Context Protocol: real servers, started and running, and how they fail."""

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mmrl_interop.mcp_option import checked_servers
from mmrl_interop.tools_task import ToolsTask
from mmrl_interop.worlds import mcp_servers

from mmrl import EnvironmentFailed, UserError

PEERS = Path(__file__).parents[3] / ".peers"
SERVER = '''
import asyncio, io, os, sys
try:
    from mcp.server.mcpserver import Image, MCPServer as Server
except ImportError:
    from mcp.server.fastmcp import FastMCP as Server, Image

app, cart = Server("shop"), []

@app.tool()
def add(thing: str, count: int = 1) -> str:
    """Put things into the cart."""
    cart.extend([thing] * count)
    return ", ".join(cart)

@app.tool()
def look() -> list:
    """Look at the shop."""
    from PIL import Image as Picture
    Picture.new("RGB", (28, 56), (255, 0, 0)).save(buffer := io.BytesIO(), "PNG")
    return ["Red.", Image(data=buffer.getvalue(), format="png")]

@app.tool()
def key() -> str:
    """The key."""
    return os.environ.get("SHOP_KEY", "none")

@app.tool()
async def misbehave(how: str) -> str:
    """Fail."""
    if how == "die":
        os._exit(3)
    if how == "hang":
        await asyncio.sleep(60)
    return [][1]

if len(sys.argv) == 1:
    app.run()
else:
    try:
        app.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    except TypeError:
        app.settings.port = int(sys.argv[1])
        app.run("streamable-http")
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("mcp")
    (made / "shop.py").write_text(SERVER)
    rows = [{"prompt": "Buy bread.", "answer": "bread"}, {"prompt": "Look.", "answer": "red", "tool_selection": ["look"]}]
    (made / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return made


@pytest.fixture(scope="module")
def task(folder):
    """Makes tasks; one that was made before is used again, with its process."""
    made = {}

    def make(python=None, timeout_s=20.0, **server):
        server = server or {"command": python or sys.executable, "args": [str(folder / "shop.py")]}
        options = {"mcp_servers": {"shop": server}, "python": python, "timeout_s": timeout_s}
        if repr(options) not in made:
            path = str(folder / "rows.jsonl")
            made[repr(options)] = ToolsTask(path=path, table={"test_share": 0}, processes=1, **options)
        return made[repr(options)]

    yield make
    for one in made.values():
        one.worlds.close()


def call(tool, **arguments):
    return f"<tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"


def said(reply):
    (text,) = ["".join(p["text"] for p in m["content"] if p["type"] == "text") for m in reply.messages]
    return text.removeprefix("<tool_response>\n").removesuffix("\n</tool_response>")


@pytest.fixture
def episodes(task):
    """Begins episodes of a task."""
    opened = []

    def begin(made, row=0):
        opened.append(made.environment(made.prompts("train", 0)[row]))
        return opened[-1]

    yield begin
    for one in opened:
        one.close()


def test_the_model_reads_what_the_server_says_of_its_tools(task):
    schemas = task().worlds.facts["schemas"][""]
    assert [schema["function"]["name"] for schema in schemas] == ["add", "look", "key", "misbehave"]
    add = schemas[0]["function"]
    assert add["description"] == "Put things into the cart." and add["parameters"]["required"] == ["thing"]
    assert add["parameters"]["properties"]["count"]["type"] == "integer"
    shown = [task().prompts("train", 0)[row].messages[0]["content"][0]["text"] for row in (0, 1)]
    assert all('"name": "look"' in text for text in shown) and ['"name": "add"' in text for text in shown] == [True, False]


def test_each_episode_has_a_server_of_its_own(task, episodes):
    one, other = episodes(task()), episodes(task())
    assert said(one.step(call("add", thing="bread"))) == "bread"
    assert said(other.step(call("add", thing="milk"))) == "milk"
    assert said(one.step(call("add", thing="jam", count=2))) == "bread, jam, jam"
    one.close()
    assert said(other.step(call("add", thing="tea"))) == "milk, tea", "which goes on where another has ended"
    assert said(episodes(task()).step(call("add", thing="salt"))) == "salt"


def test_pictures_are_shown(task, episodes):
    (message,) = episodes(task()).step(call("look")).messages
    (image,) = [part["image"] for part in message["content"] if part["type"] == "image"]
    assert image.size == (28, 56) and image.getpixel((0, 0)) == (255, 0, 0)
    assert any("Red." in part.get("text", "") for part in message["content"])


def test_errors_of_tools_are_told(task, episodes):
    episode = episodes(task())
    wrong = episode.step(call("add", thing="bread", count="many"))
    assert "{'error': " in said(wrong) and "valid integer" in said(wrong) and wrong.outcome == {"calls": 1.0, "failed": 1.0}
    assert "Error executing tool misbehave" in said(episode.step(call("misbehave", how="raise")))
    assert said(episodes(task(), 1).step(call("add", thing="x"))) == "{'error': 'Tool add not found.'}", (
        "which its row leaves out"
    )
    assert said(episode.step(call("add", thing="bread"))) == "bread"


def test_a_server_that_dies_costs_its_episode_alone(task, episodes):
    one, other = episodes(task()), episodes(task())
    other.step(call("add", thing="milk"))
    with pytest.raises(EnvironmentFailed, match=r"mcp server 'shop' was lost in misbehave: \w+: Connection closed"):
        one.step(call("misbehave", how="die"))
    assert said(other.step(call("add", thing="tea"))) == "milk, tea"
    assert said(episodes(task()).step(call("add", thing="salt"))) == "salt"


def test_a_server_that_does_not_begin_costs_its_episode(task, episodes, folder):
    """Of an episode that is not the first, whose connection listed the tools."""
    (folder / "late.py").write_text(
        "import pathlib, sys, time\nbegun = pathlib.Path(sys.argv[1])\nif begun.exists():\n    time.sleep(60)\nbegun.touch()\n"
        "sys.argv = sys.argv[:1]\n" + SERVER
    )
    made = task(timeout_s=6.0, command=sys.executable, args=[str(folder / "late.py"), str(folder / "begun")])
    assert said(episodes(made).step(call("add", thing="bread"))) == "bread"
    with pytest.raises(EnvironmentFailed, match="mcp server 'shop' can't be reached for add: TimeoutError"):
        episodes(made).step(call("add", thing="bread"))


def test_a_tool_that_hangs_is_told_and_the_episode_goes_on(task, episodes):
    episode = episodes(task(timeout_s=5.0))
    episode.step(call("add", thing="bread"))
    assert said(episode.step(call("misbehave", how="hang"))) == "{'error': 'misbehave took longer than 4 s'}"
    assert said(episode.step(call("add", thing="jam"))) == "bread, jam"


def test_what_a_variable_holds_is_in_no_option(task, episodes, monkeypatch, folder):
    monkeypatch.setenv("MY_KEY", "secret")
    server = {"command": sys.executable, "args": [str(folder / "shop.py")], "env": {"SHOP_KEY": "a ${MY_KEY}"}, "tools": ["key"]}
    made = task(**server)
    assert [schema["function"]["name"] for schema in made.worlds.facts["schemas"][""]] == ["key"]
    assert said(episodes(made).step(call("key"))) == "a secret"
    assert "secret" not in repr(made.worlds.options)


@pytest.fixture
def running(folder):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([sys.executable, str(folder / "shop.py"), str(port)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            break
        except OSError:
            assert server.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
    yield f"http://127.0.0.1:{port}/mcp"
    server.kill()
    server.wait()


@pytest.mark.parametrize("shared", [False, True])
def test_a_server_that_runs_is_reached_by_its_address(task, episodes, running, shared):
    made = task(url=running, shared=shared, headers={"X-Who": "mmrl"})
    one, other = episodes(made), episodes(made)
    assert said(one.step(call("add", thing="bread"))) == "bread"
    assert said(other.step(call("add", thing="milk"))) == "bread, milk", "it is one server, whoever is connected"
    one.close()
    assert "Red." in said(other.step(call("look")))
    with pytest.raises(EnvironmentFailed, match="was lost in misbehave"):
        other.step(call("misbehave", how="die"))


def test_a_shared_server_that_died_is_started_again(task, episodes, folder):
    made = task(command=sys.executable, args=[str(folder / "shop.py")], shared=True)
    one, other = episodes(made), episodes(made)
    one.step(call("add", thing="bread"))
    assert said(other.step(call("add", thing="milk"))) == "bread, milk"
    with pytest.raises(EnvironmentFailed):
        one.step(call("misbehave", how="die"))
    assert said(other.step(call("add", thing="tea"))) == "tea"


@pytest.mark.parametrize(
    ("result", "content"),
    [
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "structuredContent": {"a": 1}}, "a\nb"),
        ({"content": [], "structuredContent": {"price": 3}}, '{"price": 3}'),
        ({"content": []}, ""),
        ({"content": [{"type": "audio", "data": "", "mimeType": "audio/wav"}]}, "[audio audio/wav]"),
        ({"content": [{"type": "resource", "resource": {"uri": "file:///a.txt", "text": "held"}}]}, "held"),
        ({"content": [{"type": "resource", "resource": {"uri": "file:///a.bin", "blob": ""}}]}, "[resource file:///a.bin]"),
        ({"content": [{"type": "resource_link", "uri": "file:///b.txt", "name": "b"}]}, "[resource_link file:///b.txt]"),
    ],
    ids=["texts", "structured", "nothing", "a sound", "a text file", "a binary file", "a link"],
)
def test_what_results_are_told_as(result, content):
    assert mcp_servers._content(result) == content


@pytest.mark.slow
@pytest.mark.parametrize("peer", ["openenv", "verifiers", "browsergym"])
def test_versions_of_the_package(task, episodes, peer):
    """1.30, 2.0 and 2.3, in interpreters without mmrl."""
    python = PEERS / peer / "bin" / "python"
    if not python.is_file():
        pytest.skip(f"{python} is missing: make peers")
    episode = episodes(task(python=str(python)))
    assert said(episode.step(call("add", thing="bread"))) == "bread"
    assert "{'error': " in said(episode.step(call("misbehave", how="raise")))
    assert "Red." in said(episode.step(call("look")))
    with pytest.raises(EnvironmentFailed, match="was lost in misbehave"):
        episode.step(call("misbehave", how="die"))


# -- what is refused ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ({"command": "/no/such/program"}, r"mcp_servers\.shop can't be used \(FileNotFoundError: .*/no/such/program"),
        ({"command": sys.executable, "args": ["missing.py"]}, r"Connection closed; .*can't open file .*missing\.py"),
        ({"url": "http://127.0.0.1:9/mcp"}, r"can't be used \(ConnectError: .*see that it runs"),
        ({"url": "http://127.0.0.1:9/${NOT_THERE}"}, r"names \$\{NOT_THERE\}, which the environment doesn't have: set it"),
        ({"tools": ["sell"]}, r"mcp_servers\.shop\.tools has 'sell', and it offers add, look, key, misbehave: correct the name"),
    ],
    ids=["no program", "no file", "nobody there", "no variable", "no tool"],
)
def test_servers_that_can_not_be_used(folder, server, message):
    shop = {"command": sys.executable, "args": [str(folder / "shop.py")]} if set(server) == {"tools"} else {}
    made = ToolsTask(path=str(folder / "rows.jsonl"), table={"test_share": 0}, mcp_servers={"shop": {**shop, **server}})
    with pytest.raises(UserError, match=message) as error:
        made.prompts("train", 0)[0]
    assert "\n" not in str(error.value)


def test_two_tools_of_one_name(folder):
    shop = {"command": sys.executable, "args": [str(folder / "shop.py")]}
    options = {"path": str(folder / "rows.jsonl"), "table": {"test_share": 0}}
    made = ToolsTask(mcp_servers={"a": shop, "b": shop}, **options)
    with pytest.raises(UserError, match=r"mcp_servers\.a and b both offer add: choose by their key tools"):
        made.prompts("train", 0)[0]
    (folder / "own.py").write_text('def add() -> str:\n    """Add."""\n')
    made = ToolsTask(mcp_servers={"a": shop}, tools=[f"{folder}/own.py:add"], **options)
    with pytest.raises(UserError, match="two tools have one name: rename one"):
        made.prompts("train", 0)[0]


def test_files_of_other_programs_are_read(tmp_path):
    servers = {
        "a": {"type": "stdio", "command": "a", "args": ["x"], "env": {"K": "${K}"}},
        "b": {"type": "http", "url": "http://b", "headers": {"Authorization": "Bearer ${K}"}},
        "c": {"command": "c", "disabled": True},
    }
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    found = checked_servers(str(tmp_path / "mcp.json"))
    assert found == {
        "a": {"command": "a", "args": ["x"], "env": {"K": "${K}"}},
        "b": {"url": "http://b", "headers": {"Authorization": "Bearer ${K}"}},
    }
    assert checked_servers(None) == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nowhere.json", r"'nowhere\.json' can't be read \(FileNotFoundError.*give a JSON file with \"mcpServers\""),
        (["shop"], r"must be a table of servers, such as \{shop = \{command"),
        ({"shop": "python shop.py"}, "must be a table of servers"),
        ({"shop": {}}, r"mcp_servers\.shop must have either a command, which starts it, or a url"),
        ({"shop": {"command": "a", "url": "b"}}, "must have either a command"),
        ({"shop": {"type": "http", "command": "a"}}, "must have either a command"),
        ({"shop": {"type": "sse", "url": "b"}}, r"shop\.type = 'sse' can't be used: .*serve it by Streamable HTTP"),
        ({"shop": {"command": "a", "argss": []}}, r"shop has no key 'argss': it has command, args, .* Did you mean 'args'\?"),
        ({"shop": {"url": "a", "args": []}}, r"shop has no key 'args': it has url, headers, tools, shared"),
        ({"shop": {"command": "a", "args": "b c"}}, r"shop\.args = 'b c' must be a list of texts"),
        ({"shop": {"command": "a", "env": {"K": 1}}}, r"shop\.env = .* must be a table of texts"),
        ({"shop": {"command": ["a"]}}, r"shop\.command = .* must be the name or path of a program"),
        ({"shop": {"url": "a", "tools": []}}, r"shop\.tools = \[\] must be a list of the names of tools"),
        ({"shop": {"url": "a", "shared": "yes"}}, r"shop\.shared = 'yes' must be true or false"),
    ],
    ids=str,
)
def test_options_that_can_not_be(given, message):
    with pytest.raises(UserError, match=message) as error:
        checked_servers(given)
    assert "\n" not in str(error.value)


def test_a_file_without_servers(tmp_path):
    for text, why in (("{}", "no 'mcpServers'"), ("[1]", "TypeError"), ("{", "JSONDecodeError")):
        (tmp_path / "mcp.json").write_text(text)
        with pytest.raises(UserError, match=rf"can't be read \({why}"):
            checked_servers(str(tmp_path / "mcp.json"))
