"""Other trainers' rewards as verifiers: what they are called with, and that nothing they do ends a run."""

import json

import pytest
from click.testing import CliRunner
from mmrl_interop.functions import check_function, load_function

import mmrl
from mmrl import Case, UserError
from mmrl.api.cases import make_turn, with_turns
from mmrl.ui.cli import main

REWARDS = '''
import json, math, time
from helper import HALF

def length(completions, **columns):
    return [len(c[0]["content"]) / 10 for c in completions]

def brief(completion_ids, **columns):
    return [float(len(ids) < 2) for ids in completion_ids]

def told(completions, prompts, completion_ids, solution, unit, trainer_state, log_extra, log_metric, images=None, **others):
    """Raises with everything that it got."""
    log_metric("a", 1.0)
    log_extra("b", [1])
    sizes = images and [i.size for i in images[0]]
    lengths = [p and len(p) for p in prompts]
    raise ValueError(json.dumps([completions, lengths, completion_ids, solution, unit, sizes, sorted(others)]))

def odd(completions, **columns):
    how = columns["how"][0]
    if how == "hang":
        time.sleep(60)
    if how == "raise":
        raise KeyError("what")
    if how == "exit":
        raise SystemExit(3)
    return {"none": [None], "nan": [math.nan], "two": [0.5, 0.5], "zero": [], "text": "1", "one": 1.0, "words": ["good"],
            "half": [HALF], "tensor": __import__("array").array("d", [0.25]), "big": [7.0], "nothing": None}[how]

async def slowly(completions, **columns):
    return [1.0 for _ in completions]

def plain(completions, **columns):
    return [float(text == "yes") for text in completions]

def compute_score(data_source, solution_str, ground_truth, extra_info, bonus=0.0):
    how = extra_info.get("how")
    if how == "told":
        raise ValueError(f"{data_source} {ground_truth} {sorted(extra_info)}")
    found = float(solution_str == ground_truth) + bonus
    return {"table": {"score": found, "acc": 1, "right": True, "pred": "a"}, "bare": {"acc": 1}, "none": None}.get(how, found)

class Orm:
    def __init__(self, args=None):
        self.weight = 0.5

    def __call__(self, completions, solution, **columns):
        return [self.weight * (c == s) for c, s in zip(completions, solution)]

class Needy(Orm):
    def __init__(self, args):
        pass

async def compute_score_async(data_source, solution_str, ground_truth, extra_info):
    return 0.5
'''


@pytest.fixture(scope="module", autouse=True)
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rewards")
    (folder / "rewards.py").write_text(REWARDS)
    (folder / "helper.py").write_text("HALF = 0.5\n")
    (folder / "broken.py").write_text("import json\n\ndef f(:\n")
    (folder / "fails.py").write_text("raise RuntimeError('no licence')\n\ndef f():\n    pass\n")
    (folder / "lacks.py").write_text("import no_grader\n\ndef f():\n    pass\n")
    (folder / "heavy.py").write_text(
        "import time\ntime.sleep(1.0)\nHELD = bytes(200_000_000)\n\ndef f(completions, **_):\n    return [1.0]\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


def scored(verifier, cases, timeout_s=1.0, **options):
    with mmrl.open_verifiers({verifier: 1.0}, verifier_options={verifier: options}, timeout_s=timeout_s) as judge:
        return judge.score(cases)


def how(*names):
    return [Case(completion="yes", meta={"how": name}) for name in names]


def test_trl_s_rewards_are_weighed_and_added_as_they_are():
    functions = {"rewards.py:length": 0.5, "rewards.py:slowly": 1.5}
    [score] = scored("interop/trl", [Case(completion="four")], functions=functions)
    assert score.value == pytest.approx(0.5 * 0.4 + 1.5)
    assert score.parts == {"interop/trl": score.value, "interop/trl/length": 0.4, "interop/trl/slowly": 1.0}
    for more in ({}, {"range": [-1.0, 1.0]}):  # it changes no reward
        [below] = scored("interop/trl", [Case(completion="four")], functions={"rewards.py:length": -0.5}, **more)
        assert below.value == pytest.approx(-0.2) and not below.failed
    scores = scored(
        "interop/trl", [Case(completion=text) for text in ("yes", "no")], functions=["rewards.py:plain"], conversational=False
    )
    assert [s.value for s in scores] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("functions", "more", "expected"),
    [
        ("rewards.py:length", {}, (0.0, 1.0)),
        ({"rewards.py:length": 0.2, "rewards.py:plain": -0.5}, {}, (-0.5, 0.2)),
        ("rewards.py:length", {"range": [-0.2, 1.2]}, (-0.2, 1.2)),
    ],
)
def test_the_range_is_what_figures_expect(functions, more, expected):
    given = {"verifier_options": {"interop/trl": {"functions": functions, **more}}}
    with mmrl.open_verifiers({"interop/trl": 2.0}, **given) as judge:
        assert judge.value_range == tuple(2 * end for end in expected)
    pytest.importorskip("torch")
    from mmrl.train.checks.run_file import check_verifiers

    options = {"interop/trl": {"functions": functions, **more}}
    specs, _ = check_verifiers(options, {"t": {"interop/trl": (1.0, 1.0)}}, {"t": "interop/trl"}, {})
    assert (specs["interop/trl"].low, specs["interop/trl"].high) == expected


def test_trl_s_rewards_get_the_answer_and_the_meta_as_columns():
    case = Case(completion="a", answer="b", meta={"unit": "cm", "n": 3})
    [score] = scored("interop/trl", [case], functions="rewards.py:told", answer="solution")
    told = json.loads(score.detail.partition("ValueError: ")[2].rpartition(" (")[0])
    assert told == [[[{"role": "assistant", "content": "a"}]], [None], [None], ["b"], ["cm"], None, ["n"]]


def test_a_reward_of_what_it_does_not_get_is_missing():
    """An empty list of tokens would be a short completion, and earn a full reward."""
    case = Case(completion="a long answer", answer="b")
    [score] = scored("interop/trl", [case], functions="rewards.py:brief")
    assert score.failed and "NoneType" in score.detail


@pytest.mark.parametrize("name", ["function", "completions", "trainer_state"])
def test_a_column_may_have_any_name(name):
    case = Case(completion="four", answer="b", meta={name: "def f"})
    [score] = scored("interop/trl", [case], functions="rewards.py:length")
    assert score.value == pytest.approx(0.4), score.detail


def test_trl_s_rewards_may_get_the_whole_episode():
    from PIL import Image

    picture = Image.new("RGB", (8, 4))
    case = Case(completion="a", answer="b", meta={"unit": "cm"}, media=(picture,), image_sizes=((8, 4),))
    case = with_turns(case, [make_turn("a", 3)], [mmrl.user_message("?", picture)])
    [score] = scored("interop/trl-whole", [case], functions="rewards.py:told", answer="solution")
    told = json.loads(score.detail.partition("ValueError: ")[2].rpartition(" (")[0])
    assert told == [[[{"role": "assistant", "content": "a"}]], [1], [[0, 1, 2]], ["b"], ["cm"], [[8, 4]], []]


def test_whatever_a_reward_does_is_one_missing_score():
    names = (
        "half",
        "none",
        "nan",
        "two",
        "zero",
        "text",
        "one",
        "words",
        "nothing",
        "big",
        "raise",
        "exit",
        "hang",
        "tensor",
        "half",
    )
    scores = scored("interop/trl", how(*names), functions="rewards.py:odd")
    known = {name: s.value for name, s in zip(names, scores, strict=True) if s.value is not None}
    assert known == {"half": 0.5, "tensor": 0.25, "big": 7.0}
    said = {name: s.detail for name, s in zip(names, scores, strict=True)}
    for name, text in {
        "none": "rewards.py:odd returned None: there is no reward",
        "nan": "rewards.py:odd returned nan",
        "two": "rewards.py:odd returned 2 rewards for one completion",
        "zero": "returned 0 rewards for one completion",
        "text": "returned '1' and no list of rewards",
        "one": "rewards.py:odd returned 1.0 and no list of rewards: return one reward for each completion, such as [1.0]",
        "nothing": "returned None and no list of rewards",
        "words": "rewards.py:odd returned 'good', which is no number",
        "raise": "KeyError: 'what'",
        "exit": "SystemExit: 3",
        "hang": "took longer than its deadline of 1 s",
    }.items():
        assert text in said[name], name


def test_a_function_of_another_signature_is_told_what_it_is_given(tmp_path):
    (tmp_path / "other.py").write_text(
        "def labels(completions, labels):\n    return [1.0]\n\ndef built_in(*, completions, **_):\n    return [1.0]\n"
    )
    (swapped,) = scored("interop/trl", [Case(completion="a")], functions=f"{tmp_path}/other.py:labels")
    told = "other.py:labels can't be called: missing a required argument: 'labels'; it is given completions, answer, prompts"
    assert told in swapped.detail, swapped.detail
    (right,) = scored("interop/trl", [Case(completion="a")], functions=f"{tmp_path}/other.py:built_in")
    assert right.value == 1.0


def test_a_file_is_loaded_before_the_first_case():
    """What it imports counts neither as the time nor as the memory of a case: 1 s and 200 MB, with limits of 0.5 s and 64 MB."""
    given = {"verifier_options": {"interop/trl": {"functions": "heavy.py:f"}}, "timeout_s": 0.5, "memory_mb": 64}
    with mmrl.open_verifiers({"interop/trl": 1.0}, **given) as judge:
        assert judge.score(Case(completion="a")).value == 1.0


def test_verl_s_rewards():
    cases = [Case(completion="a", answer="a", meta=meta) for meta in ({}, {"how": "table"}, {"how": "bare"}, {"how": "none"})]
    right, table, bare, none = scored("interop/verl", cases, functions="rewards.py:compute_score")
    own = {name: value for name, value in table.parts.items() if name not in right.parts}
    assert own == {"interop/verl/acc": 1.0, "interop/verl/right": 1.0}, "its other numbers, and not its text"
    assert (right.value, table.value, bare.value, none.value) == (1.0, 1.0, None, None)
    assert "returned a table without score: acc" in bare.detail
    [told] = scored("interop/verl", how("told"), functions="rewards.py:compute_score", data_source="me")
    assert "ValueError: me None ['how']" in told.detail
    [told] = scored(
        "interop/verl", [Case(completion="a", meta={"how": "told", "data_source": "them"})], functions="rewards.py:compute_score"
    )
    assert "ValueError: them None" in told.detail
    options = {"functions": "rewards.py:compute_score", "arguments": {"bonus": 0.5}, "range": [0.0, 2.0]}
    assert scored("interop/verl", [Case(completion="a", answer="a")], **options)[0].value == 1.5
    assert scored("interop/verl", [Case(completion="a")], functions="rewards.py:compute_score_async")[0].value == 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "verifier 'interop/trl' needs the option 'functions'"),
        (
            {"functions": 3},
            "verifier 'interop/trl': functions = 3 must be \"path.py:function\", a list of such, or a table of their",
        ),
        ({"functions": []}, "verifier 'interop/trl': functions = [] must be"),
        (
            {"functions": "rewards.py"},
            "verifier 'interop/trl': 'rewards.py' names no function: write path.py:function or package",
        ),
        ({"functions": "gone.py:f"}, "verifier 'interop/trl': gone.py does not exist: check the path"),
        ({"functions": "broken.py:f"}, "verifier 'interop/trl': broken.py can't be read (invalid syntax"),
        (
            {"functions": "rewards.py:lenght"},
            "verifier 'interop/trl': rewards.py has no function 'lenght'. Did you mean 'length'?",
        ),
        (
            {"functions": "rewards.py:length", "range": [1, 0]},
            "verifier 'interop/trl': range = [1, 0] must go up: give the lowest",
        ),
        (
            {"functions": "rewards.py:length", "range": "0 to 1"},
            "verifier 'interop/trl': range = '0 to 1' must be [lowest, highest]",
        ),
        ({"functions": "fails.py:f"}, "fails.py can't be loaded (RuntimeError: no licence): correct it"),
        (
            {"functions": "lacks.py:f"},
            "lacks.py can't be loaded (ModuleNotFoundError: No module named 'no_grader'): install what it imports",
        ),
        (
            {"functions": "no_such_module:f"},
            "no_such_module can't be loaded (ModuleNotFoundError: No module named 'no_such_module')",
        ),
    ],
)
def test_wrong_options_are_one_line(options, message):
    with pytest.raises(UserError) as error:
        scored("interop/trl", [Case(completion="a")], **options)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


EASYR1 = """
REWARD_NAME = "math"
REWARD_TYPE = "batch"

def compute_score(reward_inputs, format_weight=0.1):
    assert all(set(one) == {"response", "response_length", "ground_truth"} for one in reward_inputs)
    return [score(one, format_weight) for one in reward_inputs]

def score(one, weight):
    right, kept = float(one["response"] == one["ground_truth"]), float(one["response_length"] < 3)
    return {"overall": (1 - weight) * right + weight * kept, "accuracy": right, "format": kept, "pred": "a"}

def odd(reward_inputs):
    return {"one": {"overall": 1.0}, "two": [{"overall": 1.0}] * 2, "bare": [{"accuracy": 1}], "number": [1.0]}[
        reward_inputs[0]["response"]
    ]
"""


@pytest.mark.parametrize("kind", ["batch", "sequential"])
def test_easyr1_s_rewards_run_as_they_are(tmp_path, kind):
    file = EASYR1.replace('"batch"', f'"{kind}"')
    if kind == "sequential":
        file = file.replace(
            "(reward_inputs, format_weight=0.1):", "(one, format_weight=0.1):\n    return score(one, format_weight)"
        )
    (tmp_path / f"easy_{kind}.py").write_text(file)
    place = f"{tmp_path}/easy_{kind}.py"
    cases = [
        with_turns(Case(completion="forty", answer="forty"), [make_turn("forty", 2)]),
        Case(completion="fifty", answer="forty"),
    ]
    scores = scored("interop/easyr1", cases, functions=f"{place}:compute_score", arguments={"format_weight": 0.2})
    assert [score.value for score in scores] == [pytest.approx(1.0), 0.0], "its length is in tokens, where there are some"
    name = "interop/easyr1/"
    assert scores[0].parts[name + "accuracy"] == scores[0].parts[name + "format"] == 1.0 and name + "pred" not in scores[0].parts


def test_what_easyr1_would_not_take_is_a_missing_score(tmp_path):
    (tmp_path / "easy_odd.py").write_text(EASYR1)
    cases = [Case(completion=text) for text in ("one", "two", "bare", "number")]
    scores = scored("interop/easyr1", cases, functions=f"{tmp_path}/easy_odd.py:odd")
    assert all(score.failed for score in scores)
    assert [score.detail.split("returned ")[1] for score in scores] == [
        "{'overall': 1.0} and no list of one table for one completion",
        "[{'overall': 1.0}, {'overall': 1.0}] and no list of one table for one completion",
        "a table without overall: accuracy",
        "1.0 and no table with overall",
    ]


def test_a_reward_may_be_a_class_as_ms_swift_s_are():
    cases = [Case(completion=text, answer="yes") for text in ("yes", "no")]
    scores = scored("interop/trl", cases, functions="rewards.py:Orm", conversational=False, answer="solution")
    assert [score.value for score in scores] == [0.5, 0.0]
    with pytest.raises(UserError, match=r"rewards\.py:Needy\(\) can't be made \(TypeError: .*args'\): correct it"):
        load_function("rewards.py:Needy")


def test_functions_of_packages_and_files():
    assert load_function("json:dumps")({}) == "{}" and load_function("rewards.py:length") is load_function("rewards.py:length")
    check_function("helper.py:HALF")
    with pytest.raises(UserError, match=r"helper\.py has no function 'HALF'"):
        load_function("helper.py:HALF")


def test_mmrl_score_takes_them():
    given = ["score", "interop/trl", "--set", 'functions="rewards.py:length"']
    done = CliRunner().invoke(main, given, input='{"completion": "four"}\n')
    assert (done.exit_code, json.loads(done.stdout)["value"]) == (0, 0.4)
    done = CliRunner().invoke(main, ["score", "interop/trl", "--set", 'functions="gone.py:f"'], input='{"completion": "four"}\n')
    assert (done.exit_code, done.stdout) == (2, "") and done.stderr.count("\n") == 1


RUN = """
name = "rewarded"
seed = 0
policy = {model = "tiny:qwen2_5_vl", dtype = "float32"}
tasks = [{id = "peers/shade", verifiers = {"interop/trl" = 1.0, "interop/verl" = 0.5}}]
stages = [{kind = "rl", steps = 2, prompts_per_step = 2, group_size = 4, learning_rate = 1e-3}]
generate = {max_tokens = 6}
evaluate = {every = 0, num_prompts = 2}

[verifiers."interop/trl"]
functions = "rewards.py:length"
range = [0.0, 20.0]

[verifiers."interop/verl"]
functions = "rewards.py:compute_score"
"""


@pytest.mark.slow
def test_a_run_trains_on_them(here, tmp_path):
    pytest.importorskip("torch")
    (here / "run.toml").write_text(RUN)
    done = CliRunner().invoke(main, ["train", "run.toml", "--set", f'runs_dir="{tmp_path}"'])
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in (tmp_path / "rewarded" / "rollouts" / "step-000001.jsonl").read_text().splitlines()]
    assert rows and all(row["score"]["parts"]["interop/trl/length"] == pytest.approx(len(row["completion"]) / 10) for row in rows)
    (here / "run.toml").write_text(RUN.replace("rewards.py:length", "rewards.py:lenght"))
    wrong = CliRunner().invoke(main, ["train", "run.toml", "--dry-run"])
    assert (wrong.exit_code, wrong.stderr.count("\n")) == (2, 1) and "Did you mean 'length'?" in wrong.stderr
