"""The run file: what is accepted, and one line for what is not."""

import copy
import math
import os
import re
import tomllib
from pathlib import Path

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from mmrl.api.errors import UserError
from mmrl.config import load as configs
from mmrl.config.renamed import RENAMED, REPLACED
from mmrl.train.smoke import TINY, smoke

GOOD = {
    "name": "x",
    "policy": {"model": "m"},
    "tasks": [{"id": "a/b"}],
    "stages": [{"kind": "sft", "steps": 1}, {"kind": "rl", "steps": 2}],
}


def test_defaults_and_overrides():
    config = configs.parse_config(
        GOOD,
        [
            "stages.1.group_size=4",
            "policy.model=some/name",
            "generate.temperature=0.5",
            "tasks.0.options.size=56",
            "stages.-1.kl_coef=0.1",
        ],
    )
    assert (
        config.stages[1].group_size,
        config.policy.model,
        config.generate.temperature,
        config.tasks[0].options,
        config.stages[1].kl_coef,
    ) == (4, "some/name", 0.5, {"size": 56}, 0.1)
    assert config.stages[0].learning_rate == 1e-5 and config.stages[1].learning_rate == 1e-6
    assert GOOD["stages"][1] == {"kind": "rl", "steps": 2}, "the caller's data is not changed"


@pytest.mark.parametrize("key", ['"a/b"', "'a/b'", "a/b", ' "a/b" ', '"a\\u002fb"'])
def test_a_key_of_set_may_be_quoted_as_in_toml(key):
    config = configs.parse_config(GOOD, [f"verifiers.{key}.range=[-0.2, 1.2]", f'verifiers.{key}."a.b=c".d=1=2'])
    assert config.verifiers == {"a/b": {"range": [-0.2, 1.2], "a.b=c": {"d": "1=2"}}}


def test_a_path_may_begin_with_the_users_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    keys = ["runs_dir", "policy.model", "stages.1.teacher", "stages.1.select.path"]
    config = configs.parse_config(GOOD, [f"{key}='~/a b'" for key in keys])
    rl = config.stages[1]
    assert (config.runs_dir, config.policy.model, rl.teacher, rl.select.path) == ("/home/me/a b",) * 4
    assert configs.parse_config(GOOD, ["policy.model=a~b/c"]).policy.model == "a~b/c"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("stages.1.group_sise=4", "unknown key 'stages.1.group_sise': did you mean 'group_size'?"),
        ("stages.0.group_size=4", "unknown key 'stages.0.group_size'"),
        ("polcy.model=x", "did you mean 'policy'?"),
        ("policy.model=''", "'policy.model': it is empty: give a path or a name"),  # not '.', which Python takes it for
        ("policy.modle=x", "did you mean 'model'?"),
        ("tasks.0.wieght=1", "did you mean 'weight'?"),
        ("seed=one", "'seed': it should be a whole number; found 'one'"),
        ("seed=true", "'seed': it should be a whole number; found True"),
        ("compute.learners=true", "'compute.learners': it should be a whole number; found True"),
        ("compute.gpu_memory_utilization=true", "'compute.gpu_memory_utilization': it should be a number; found True"),
        ("policy.max_pixels=false", "'policy.max_pixels': it should be a whole number; found False"),
        ("stages.0.steps=true", "'stages.0.steps': it should be a whole number; found True"),
        ("evaluate.sparse_frames=[true, 8]", "'evaluate.sparse_frames': it should be of numbers; found [True, 8]"),
        ("tasks.0.verifiers={'a/b' = true}", "'tasks.0.verifiers': it should be of numbers"),
        ("tasks.0.verifiers={'a/b' = [0, true]}", "'tasks.0.verifiers': it should be of numbers"),
        ("train.compile=yes", "'train.compile': it should be true or false; found 'yes'"),
        ("train.compile=1", "'train.compile': it should be true or false; found 1"),
        ("generate.temperature='1'", "'generate.temperature': it should be a number; found '1'"),
        ("policy.options=5", "'policy.options': it should be a table: write its keys, such as { key = value }; found 5"),
        ("generate.temperature=0", "'generate.temperature': input should be greater than or equal to 0.001; found 0"),
        ("generate.temperature=1e-300", "'generate.temperature': input should be greater than or equal to 0.001; found 1e-300"),
        ("train.threads=100000000", "'train.threads': input should be less than or equal to 1024; found 100000000"),
        ("policy={model = 'a', min_pixels = 9, max_pixels = 8}", "'policy': min_pixels = 9 is above max_pixels = 8: lower it"),
        ("evaluate.temperature=1e-320", "'evaluate': temperature = 9.99989e-321 must be 0 or at least 0.001"),
        ("evaluate.sparse_frames=[8, 4]", "'evaluate': sparse_frames = [8, 4] must rise, such as [32, 64, 128]"),
        ("stages.0.sft=1", "unknown key 'stages.0.sft'"),
        ("generate.max_tokens=-1", "'generate.max_tokens'"),
        ("stages.0.kind=dpo", "'stages.0' needs kind"),
        ("stages[0].steps=3", "unknown key 'stages[0]': did you mean 'stages.0'?"),
        ("policy.options[0]=1", "unknown key 'policy.options[0]': did you mean 'options.0'?"),
        ("odd(key)=1", "unknown key 'odd(key)': known keys are name"),
        ("policy.options." + "a." * 60 + "b=1", "tables are nested deeper than 50 levels"),
        ("stages=[]", "'stages'"),
        ("tasks={id = 'a/b'}", "'tasks': it is a list of sections: write [[tasks]] in place of [tasks], or [{...}] in"),
        ("stages=3", "'stages'"),
        ("tasks=3", "'tasks'"),
        ("name=a/b", "'name': must be usable as a folder name"),
        ("name=..", "'name': must be usable as a folder name"),
        ("judge.failure_limit=1.5", "'judge.failure_limit'"),
        ("tasks.0.weight=-1", "'tasks.0.weight'"),
        ("tasks.0.weight=0", "the weights of [[tasks]] add up to 0: give at least one a weight above 0"),
        ("tasks.1.weight=1", "'1' is not an item of a list of 1"),
        ("tasks.first.weight=1", "'first' is not an item of a list of 1"),
        ("policy.model.size=1", "'model' is a single value"),
        ("seed", "has no value: write --set key.path=value"),
        ("=3", "has no key: write --set key.path=value"),
        ("seed=\udcff", "is no UTF-8: write it in that encoding"),
        ("\udcff=3", "is no UTF-8"),
        ('"seed=3', "unknown key '\"seed'"),
        ("=3=4", "has no key"),
        ("stages.0.steps=1e30", "'stages.0.steps': it is too large: lower it; found 1e+30"),
        ("runs_dir='~nobody-is-called-so/runs'", "'runs_dir': begins with ~, which stands for no user's folder here"),
    ],
)
def test_one_line_says_what_is_wrong(override, message):
    with pytest.raises(UserError) as caught:
        configs.parse_config(GOOD, [override])
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert "found {" not in str(caught.value)  # a whole section


def refusal(path, key, value):
    """What is said of a run file with this key in the section at `path`, and where it says that the key is."""
    node = data = copy.deepcopy(GOOD)
    where = []
    for part in path:
        node, where = node.setdefault(part, {"path": "p"} if part == "select" else {}), [*where, part]
        if isinstance(node, list):
            node, where = node[-1], [*where, str(len(node) - 1)]
    node[key] = value
    with pytest.raises(UserError) as caught:
        configs.parse_config(data)
    return str(caught.value), ".".join([*where, key])


@pytest.mark.parametrize("old", RENAMED)
def test_a_key_that_was_renamed_is_refused_and_the_new_one_is_named_and_exists(old):
    *path, key = old.split(".")
    said, where = refusal(path, key, 1)
    assert said == f"run file: key {where!r} is called {RENAMED[old]!r} since mmrl 0.2: rename it"
    said, where = refusal(path, RENAMED[old], object())
    assert re.match(rf"run file: '{re.escape(where)}(\.\d+)?': .*; found <object", said), (
        "the key exists, and no object is a value"
    )
    assert ".".join([*path, RENAMED[old]]) not in RENAMED


def test_the_changelog_has_every_key_that_was_renamed():
    changelog = (
        (Path(__file__).parents[2] / "CHANGELOG.md").read_text("utf-8").partition("### Run-file keys")[2].partition("\n### ")[0]
    )
    told = {
        ".".join(filter(None, [section.strip("`[]"), old])): new
        for section, cell in re.findall(r"^\| (top level|`\[.*?\]`) \| (`\w+` → .*) \|$", changelog, re.MULTILINE)
        for old, new in re.findall(r"`(\w+)` → `(\w+)`", cell)
    }
    assert {old.removeprefix("top level."): new for old, new in told.items()} == RENAMED
    assert all(f"`[{old}]`" in changelog for old in REPLACED)


@pytest.mark.parametrize("old", REPLACED)
def test_a_key_that_is_gone_is_refused_with_what_to_write_in_its_place(old):
    *path, key = old.split(".")
    said, where = refusal(path, key, {})
    assert said == f"run file: key {where!r} is gone since mmrl 0.2: {REPLACED[old]}"
    named = re.search(r"\[\[stages\.(\w+)\]\]", REPLACED[old])
    assert named and isinstance(getattr(configs.parse_config(GOOD).stages[1], named[1]), list)


def test_what_is_missing_is_named():
    with pytest.raises(UserError, match=r"'policy\.model' is missing"):
        configs.parse_config({**GOOD, "policy": {}})
    with pytest.raises(UserError, match="'stages' is missing"):
        configs.parse_config({k: v for k, v in GOOD.items() if k != "stages"})
    misspelt = [{"kind": "rl", "stpes": 3}]
    with pytest.raises(UserError, match=r"unknown key 'stages\.0\.stpes': did you mean 'steps'\?"):
        configs.parse_config({**GOOD, "stages": misspelt})
    with pytest.raises(UserError, match="'a/b' is listed twice"):
        configs.parse_config({**GOOD, "tasks": [{"id": "a/b"}, {"id": "a/b"}]})


def test_unreadable_files(tmp_path):
    (tmp_path / "latin.toml").write_bytes('name = "é"'.encode("latin-1"))
    (tmp_path / "empty.toml").write_text(" \n")
    (tmp_path / "broken.toml").write_text("name =")
    os.mkfifo(tmp_path / "pipe.toml")
    with open(tmp_path / "sparse.toml", "wb") as file:
        file.truncate(2**33)
    for name, message in [
        ("pipe.toml", "is a pipe or a device: save the text in a file"),
        ("/dev/zero", "is a pipe or a device"),
        ("sparse.toml", "has 8,589,934,592 bytes, at most 1,048,576 are read"),
        ("x" * 5000, "can't be read: File name too long: check its path"),
        ("a\0b", "can't be read: its name has a character that no path can have"),
        ("a\ud800b", "can't be read: its name has a character that no path can have"),
        ("none.toml", "does not exist"),
        ("empty.toml", "is empty: write one"),
        ("latin.toml", "not UTF-8"),
        ("broken.toml", "not valid TOML"),
        (".", "is a folder"),
    ]:
        with pytest.raises(UserError, match=message):
            configs.load_config(tmp_path / name)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["name", "policy", "stages", "tasks", "kind", "steps", "model"]), inner, max_size=4)
        ),
    )
)
def test_no_data_raises_anything_but_a_user_error(data):
    try:
        configs.parse_config(data if isinstance(data, dict) else {"name": data})
    except UserError as error:
        assert "\n" not in str(error).replace("\\n", "")


def test_the_resolved_config_is_itself_a_run_file():
    config = configs.parse_config(GOOD)
    assert configs.parse_config(configs.to_dict(config)) == config


def test_inf_stays_inf_in_settings_and_options():
    stage = {"kind": "rl", "steps": 9, "settings": {"clip_high": math.inf}}
    config = configs.parse_config({**GOOD, "stages": [stage], "tasks": [{"id": "a", "options": {"far": [math.inf, 1]}}]})
    again = configs.parse_config(tomllib.loads(tomli_w.dumps(configs.to_dict(config))))
    for each in (again, smoke(config), pilot_of(config)):
        assert each.stages[0].settings == {"clip_high": math.inf} and each.tasks[0].options == {"far": [math.inf, 1]}


def pilot_of(config):
    from mmrl.data.mixture import Mixture, pilot_config

    two = config.model_copy(update={"tasks": [*config.tasks, config.tasks[0].model_copy(update={"name": "b"})]})
    return pilot_config(two, 1, Mixture("only a", (1.0, 0.0)), 2, "runs")


def test_the_longest_name_leaves_room_for_what_is_added_to_it():
    config = configs.parse_config(GOOD, ["name=" + 200 * "n"])
    assert smoke(config).name == 194 * "n" + "-smoke" and pilot_of(config).name.startswith(100 * "n")
    with pytest.raises(UserError, match="at most 200 characters"):
        configs.parse_config(GOOD, ["name=" + 201 * "n"])


def test_a_smoke_run_leaves_out_what_is_about_other_layers():
    config = configs.parse_config(
        {
            **GOOD,
            "policy": {"model": "org/model", "lora": {"target_modules": ["*.layers.30.*", "vision"]}},
            "stages": [
                {
                    "kind": "rl",
                    "steps": 9,
                    "algorithm": "ppo",
                    "critic": {"warmup_steps": 5},
                    "parts": [{"match": "*.layers.30.*", "freeze": True}, {"match": "vision", "freeze": True}],
                }
            ],
        }
    )
    small = smoke(config)
    assert small.policy.lora.target_modules == ["vision"] and [p.match for p in small.stages[0].parts] == ["vision"]
    assert small.stages[0].critic.warmup_steps == 1


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["own.head.*", "*"], ["own.head.*", "*"]),
        (["own.head.*", "vision"], ["own.head.*", "vision"]),
        (["*.layers.30.*", "vision", "*"], ["vision"]),  # the last would take all that the first was to keep
        (["*.layers.30.*", "own.head.*"], []),
    ],
)
def test_a_smoke_run_keeps_what_is_about_weights_that_every_model_has(given, kept):
    parts = [{"match": match, "learning_rate": 1.0} for match in given]
    stage = {"kind": "sft", "steps": 9, "parts": parts}
    small = smoke(configs.parse_config({**GOOD, "policy": {"model": "org/model"}, "stages": [stage]}))
    assert [part.match for part in small.stages[0].parts] == kept


def test_an_empty_list_has_no_items_to_set():
    with pytest.raises(UserError, match=r"'0' is not an item of a list of 0: give the list in the run file first"):
        configs.parse_config({**GOOD, "tasks": []}, ["tasks.0.weight=1"])


@pytest.mark.parametrize(("size", "kept"), [(1, True), (TINY - 1, True), (TINY, False), (None, False)])
def test_a_smoke_run_keeps_a_model_in_a_folder_that_is_small_itself(tmp_path, size, kept):
    model = tmp_path / "model"
    model.mkdir()
    if size is not None:
        with open(model / "model.safetensors", "wb") as file:
            file.truncate(size)  # it takes no room
    small = smoke(configs.parse_config({**GOOD, "policy": {"model": str(model)}}))
    assert (small.policy.model == str(model)) == kept


def test_smoke_is_a_field_that_is_not_set_by_hand():
    small = smoke(configs.parse_config(GOOD))
    assert small.smoke and small.name == "x-smoke" and smoke(small) is small
    assert configs.parse_config(configs.to_dict(small)).smoke, "as its run folder has it"
    with pytest.raises(UserError, match=r"smoke = true is only for run files .*: leave it out"):
        configs.parse_config({**GOOD, "smoke": True})


@pytest.mark.parametrize(
    "said", ["votes/agreement", "> 0.3", "loss >= 0", "loss > x", "loss>0", "loss > 1 ", "loss > nan", "loss > 0, b > 0"]
)
def test_what_a_smoke_run_shows_is_a_figure_a_sign_and_a_number(said):
    given = ["part gui/subgoals > 0", "loss != -0.5", "moved_share < 1"]
    assert smoke(configs.parse_config({**GOOD, "smoke_shows": given})).smoke_shows == given
    with pytest.raises(UserError, match=r"smoke_shows\.0.*the name of a figure, then <, > or !=, and a number"):
        configs.parse_config({**GOOD, "smoke_shows": [said]})


def test_smoke_makes_any_run_small_and_local():
    config = configs.parse_config(
        {
            **GOOD,
            "policy": {"model": "Qwen/Qwen2.5-VL-7B-Instruct", "dtype": "bfloat16", "device": "cuda"},
            "generate": {"max_tokens": 2048},
        },
        ["stages.1.steps=5000", "stages.1.epochs=4", "evaluate.num_prompts=5000"],
    )
    small = smoke(config)
    assert (small.policy.model, small.policy.dtype, small.policy.device) == ("tiny:qwen2_5_vl", "float32", "cpu")
    assert (small.stages[1].steps, small.stages[1].epochs, small.generate.max_tokens, small.evaluate.num_prompts, small.name) == (
        2,
        2,
        16,
        4,
        "x-smoke",
    )


def test_tables_within_tables_without_end_are_one_line():
    deep: dict = {}
    for _ in range(5000):
        deep = {"a": deep}
    with pytest.raises(UserError, match="run file has tables within tables beyond any depth: shorten its dotted keys"):
        configs.parse_config({**GOOD, "policy": {**GOOD["policy"], "options": deep}})


def test_a_key_that_is_abbreviated_by_its_initials_is_suggested():
    with pytest.raises(UserError, match=r"^run file: unknown key 'stages\.1\.wd': did you mean 'weight_decay'\?$"):
        configs.parse_config(GOOD, ["stages.1.wd=1"])


def test_the_last_item_of_a_list_is_minus_one_and_no_item_is_beyond():
    assert configs.parse_config(GOOD, ["stages.-1.steps=7"]).stages[1].steps == 7
    with pytest.raises(UserError, match=r"'-3' is not an item of a list of 2: use 0 to 1, or -1 for the last$"):
        configs.parse_config(GOOD, ["stages.-3.steps=7"])
