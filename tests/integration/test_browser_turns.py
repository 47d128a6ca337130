"""Several turns in a real browser, from its pages to the gradient: each turn's screen is read where it was seen, what the policy
said is trained and nothing else, and each turn is credited with what came after it. Programs, and examples that a model finds."""

import os
import re
import signal
import subprocess
import time

import pytest
import torch

import forked
import vlm_cases as cases
from browsers import no_browser
from mmrl.algorithms.gae import gae
from mmrl.algorithms.signals import Signals
from mmrl.api.types import Score, Status
from mmrl.config.sections import RlStage
from mmrl.policies.batches import Credit
from mmrl.rollout.generate.sampling import Completion, SamplingParams
from mmrl.rollout.turns import ConversationCollector
from mmrl.train.update.pack_conversations import pack
from stub_endpoint import stub_endpoint

PAGE = "click-button-sequence"
GROUP = 4


class Script:
    """A generator that samples what it is told to: a function of a group's number, the episode's in it, and the turn."""

    batch_size = 64

    def __init__(self, policy, says):
        self.policy, self.says, self.turn = policy, says, 0

    def generate(self, inputs, group_size, sampling, numbers=()):
        if self.turn == 0:
            places = [(g, k) for g in range(len(inputs)) for k in range(group_size)]
            self.going = places
        else:  # episodes that go on, one by one
            places = self.going = [p for p in self.going if self.says(*p, self.turn) is not None]
        assert len(places) == len(inputs) * group_size
        samples = [self._sample(self.says(*place, self.turn)) for place in places]
        self.turn += 1
        return [samples[i : i + group_size] for i in range(0, len(samples), group_size)]

    def _sample(self, text):
        ids = tuple(self.policy.encode_completion(text))
        return Completion(token_ids=ids, logprobs=(-1.0,) * len(ids), finished=True)


@pytest.fixture(scope="module")
def task():
    if why := no_browser():
        pytest.skip(why)
    from mmrl_gui.episodes import Episodes

    return Episodes(pages=[PAGE], style="brief", held_out=10)


@pytest.fixture(
    scope="module", params=[pytest.param(f, marks=() if f == "qwen3_vl" else pytest.mark.slow) for f in cases.FAMILIES]
)
def policy(request):
    return cases.policy(request.param)


def right(task, prompt):
    """The two actions that the page's expert takes."""
    environment, said = task.environment(prompt), [task.gold(prompt)]
    environment.step(said[0])
    said.append(environment.gold_turn())
    environment.close()
    return said


@pytest.fixture(scope="module")
def played(policy, task):
    """Two groups of four episodes: right, right but for a word in between, the buttons in the wrong order, and no action at all
    until there are no turns left."""
    prompts = task.prompts("test", 0)[:2]
    gold = [right(task, p) for p in prompts]

    def says(group, k, turn):
        one, two = gold[group]
        said = ([one, two], [one, "hm", two], [two, one], ["what?"] * 4)[k]
        return said[turn] if turn < len(said) else None

    collector = ConversationCollector(policy, Script(policy, says), {prompts[0].task: task}, max_turns=4)
    return collector.collect(prompts, collector.encode(prompts), GROUP, SamplingParams(temperature=1.0, max_tokens=16))


def conversation(rollout):
    """The whole of it, as messages: prompt, answer, what was seen, answer, ..."""
    said = list(rollout.prompt.messages)
    for number, turn in enumerate(rollout.turns):
        said += turn.messages if number else ()
        said += [{"role": "assistant", "content": [{"type": "text", "text": turn.text}]}] if turn.token_ids else []
    return [{"role": m["role"], "content": list(m["content"])} for m in said]


def directly(policy, rollout):
    """transformers' own reading of the conversation, in one call of its processor and one of its model: the ids, the number of
    its pictures, and the log-probabilities of what the policy said."""
    encoded = policy.processor.apply_chat_template(
        conversation(rollout), tokenize=True, return_dict=True, return_tensors="pt", add_generation_prompt=False
    )
    ids = encoded["input_ids"][0].tolist()
    places, at = [], 0
    for turn in rollout.turns:  # an answer stands after its generation prompt, in order
        wanted = list(turn.token_ids)
        while wanted and ids[at : at + len(wanted)] != wanted:
            at += 1
        places += range(at, at + len(wanted))
        at += len(wanted)
    policy.family.forget_positions()
    logits = policy.model(**encoded).logits[0]
    logits[:, sorted(policy.banned)] = -torch.inf
    predicted = logits.log_softmax(-1)[[p - 1 for p in places]]
    return ids, len(encoded["image_grid_thw"]), predicted.gather(1, torch.tensor(ids)[places][:, None])[:, 0]


def gradient(policy, loss):
    policy.model.zero_grad()
    loss.backward()
    found = torch.cat([p.grad.flatten() for _, p in policy.parameters() if p.grad is not None]).clone()
    policy.model.zero_grad()
    return found


def test_the_episodes_are_those_of_the_script(played):
    assert [r.outcome["success"] for r in played] == [1.0, 1.0, 0.0, 0.0] * 2
    assert [sum(bool(t.token_ids) for t in r.turns) for r in played] == [2, 3, 2, 4] * 2
    assert [r.status for r in played] == [Status.FINISHED, Status.FINISHED, Status.FINISHED, Status.TRUNCATED_TURNS] * 2
    assert [r.group for r in played] == [0] * 4 + [1] * 4
    first, second = (r.turns[1].messages[0]["content"][0]["image"] for r in (played[0], played[4]))
    assert first.tobytes() != second.tobytes(), "each episode sees its own page"


@pytest.mark.parametrize(("shared", "budget"), [(True, 100_000), (False, 100_000), (True, 700), (False, 1)])
def test_logprobs_and_gradient_are_transformers_own_of_the_whole_conversation(policy, played, shared, budget):
    want = [directly(policy, r) for r in played]
    for rollout, (ids, pictures, logprobs) in zip(played, want, strict=True):
        observed = [i for t in rollout.turns for i in (*t.observed_ids, *t.token_ids)]
        ends = ids[: len(observed)] == observed[: len(ids)]
        assert ends, "token for token what the chat template makes of it"
        assert pictures == sum(1 for t in rollout.turns[1:] if t.observed_ids) + 1 and len(logprobs) == rollout.length
    longest = max(r.length for r in played)
    weights = torch.linspace(-1, 2, len(played) * longest).reshape(len(played), longest)
    expected = gradient(policy, sum((w * weights[n, : len(w)]).sum() for n, (_, _, w) in enumerate(want)))
    batch = pack(played, Credit(advantages=weights), policy, shared_prefix=shared, budget=budget, keep_zero=True)
    got = [policy.outputs(m, 1.0).logprobs_L for m in batch.micro]
    for micro, logprobs_L in zip(batch.micro, got, strict=True):
        alone = torch.stack([want[n][2][t] for n, t in zip(micro.rollout_L, micro.place_L, strict=True)])
        assert (logprobs_L - alone).abs().max() < 5e-5
    assert sum(len(m.target_L) for m in batch.micro) == sum(r.length for r in played), "all that was said, and nothing else"
    loss = sum((g * m.advantages_L).sum() for g, m in zip(got, batch.micro, strict=True))
    assert ((gradient(policy, loss) - expected).norm() / expected.norm()).item() < 1e-4


def test_a_later_screen_matters_to_what_is_said_after_it_and_not_before(policy, played):
    """Or the parity above would hold for a policy that is blind."""
    rollout, other = played[0], played[4]
    swapped = [*conversation(rollout)]
    picture = other.turns[1].messages[0]["content"][0]["image"].rotate(180)
    swapped[2] = {"role": "user", "content": [{"type": "image", "image": picture}, *swapped[2]["content"][1:]]}
    found = []
    for said in (conversation(rollout), swapped):
        encoded = policy.processor.apply_chat_template(said, tokenize=True, return_dict=True, return_tensors="pt")
        policy.family.forget_positions()
        found.append(policy.model(**encoded).logits[0])
    before = len(rollout.turns[0].observed_ids) + len(rollout.turns[0].token_ids)
    assert torch.equal(*(f[: before - 1] for f in found)) and not torch.allclose(*(f[-1] for f in found), atol=1e-4)


@pytest.mark.parametrize("by_turn", [False, True])
def test_each_turn_is_credited_with_what_came_after_it(played, by_turn):
    """With gamma 0.5 and values of 0: an episode's end pays its turns 1, 1/2, 1/4 from the last; what a turn earned by itself
    counts in full."""
    earned = [(0.5, 0.5), (0.5, 0.0, 0.5), (0.0, 0.0), (0.0,) * len(played[3].turns)] * 2
    scores = [Score(r.outcome["success"], steps=s if by_turn else ()) for r, s in zip(played, earned, strict=True)]
    signals = Signals(played, scores, RlStage(kind="rl", steps=1, credit="turn"))
    zeros = torch.zeros_like(signals.rewards_NT)
    found, _ = gae(signals.rewards_NT, zeros, torch.zeros(len(played)), signals.units_NT, gamma=0.5, lam=1.0, whiten=False)
    won = [(0.75, 0.5), (0.625, 0.25, 0.5)] if by_turn else [(0.5, 1.0), (0.25, 0.5, 1.0)]
    wanted = [*won, (0.0, 0.0), (0.0,) * 4]
    for n, rollout in enumerate(played):
        said = [turn for turn in rollout.turns if turn.token_ids]
        flat = [credit for turn, credit in zip(said, wanted[n % GROUP], strict=True) for _ in turn.token_ids]
        assert found[n, : rollout.length].tolist() == pytest.approx(flat), "one credit for all tokens of a turn"


def program_of(text):
    """Clicks ONE and TWO, by the numbers of a page's last list."""
    numbers = {name: number for number, name in re.findall(r'^\[(\d+)\] button "(ONE|TWO)"$', text, re.MULTILINE)}
    return f"click({numbers['ONE']})\nclick({numbers['TWO']})"


def test_a_model_finds_an_example_by_programs_and_prompts_show_it(task, tmp_path):
    """Its first trial, of two turns, clicks on TWO first and fails; its second one succeeds. From kept answers it finds the same
    example again."""

    def answer(body):
        program = program_of(body["messages"][0]["content"])
        return program if len(stub.bodies) > 1 else program.splitlines()[1]

    def made(url):
        explorer = {"model": "stub", "base_url": url, "cache": str(tmp_path / "trials")}
        return type(task)(pages=[PAGE], observe="elements", style="program", examples=1, explorer=explorer)

    with stub_endpoint(answer=answer) as stub:
        programs = made(stub.url)
        prompt = programs.prompts("train", 0)[0]
        assert len(stub.bodies) == 3 and "An example:" not in str(stub.bodies)
        again = made(stub.url).prompts("train", 0)[0]
        assert again.text == prompt.text and len(stub.bodies) == 3
    example, _, asked = prompt.text.rpartition("\n\n")
    assert example.startswith("An example:\nClick button ONE, then click button TWO.\n[1] ")
    assert example.endswith(program_of(example)) and "Answer with a short program" in asked
    environment = programs.environment(prompt)
    reply = environment.step(f"# both in one turn\n{program_of(asked)}")
    environment.close()
    assert reply.terminated and reply.outcome["success"] == 1.0 and reply.outcome["actions"] == 2.0


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_ends_a_run_in_order(tmp_path):
    """It reaches the run and all that it has started; the browser is the run's to end."""
    if why := no_browser():
        pytest.skip(why)
    text = RUN.format(runs=tmp_path)
    (tmp_path / "run.toml").write_text(text)
    run = forked.start(["train", str(tmp_path / "run.toml")], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    metrics = tmp_path / "stopped" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (metrics.is_file() and '"rl"' in metrics.read_text()) and time.monotonic() < deadline and run.poll() is None:
        time.sleep(0.2)
    os.killpg(run.pid, signal.SIGINT)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 130, err
    assert "Traceback" not in err and "never retrieved" not in err and "--resume" in out + err


RUN = """
name = "stopped"
runs_dir = "{runs}"
policy = {{ model = "tiny:qwen2_5_vl:hidden=32,layers=1" }}
tasks = [{{ id = "gui/episodes", options = {{ pages = ["click-test"], style = "brief", grid = [10, 13] }} }}]
stages = [{{ kind = "rl", steps = 1000, prompts_per_step = 2, group_size = 4 }}]
generate = {{ max_tokens = 6, max_turns = 2 }}
evaluate = {{ num_prompts = 0 }}
record = {{ rollouts_every = 0, trackers = [] }}
"""
