"""What chat templates are told by `policy.chat_template_kwargs`, and models whose templates begin the thinking themselves."""

import json
import math
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest

import vlm_cases as cases
from mmrl import Prompt, Reply, Score, Task, UserError, VerifierSpec, user_message
from mmrl.api.sampling import Continued
from mmrl.api.verifiers.parse import has_think_answer_format, only_answer
from mmrl.config.sections import PolicyConfig, RunConfig
from mmrl.policies.vlm import tiny
from mmrl.policies.vlm.answer_texts import AnswerTexts
from mmrl.policies.vlm.chat_templates import opened_thinking
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.sampling import Completion, SamplingParams
from mmrl.rollout.turns import ConversationCollector
from mmrl.train.checks.gold_rewards import gold_warnings
from mmrl.train.start import load_teacher

HEAD = "<|im_start|>assistant\n"
OPENED, CLOSED = "<think>\n", "<think>\n\n</think>\n\n"
THINKING = "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
"""The end of Qwen3.5's template, and of Qwen3's turned round."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A model whose template opens the thinking of each answer, unless it is told otherwise."""
    folder = tmp_path_factory.mktemp("thinker")
    tiny.save(str(folder), "qwen3_vl", hidden=32, layers=1)
    file = folder / "chat_template.jinja"
    plain = file.read_text()
    file.write_text(plain.replace("assistant\n{% endif %}", f"assistant\n{THINKING}{{% endif %}}"))
    assert file.read_text() != plain
    return folder


@pytest.fixture(scope="module")
def thinker(checkpoint):
    return VLM(PolicyConfig(model=str(checkpoint)))


@pytest.fixture(scope="module")
def silent(checkpoint):
    return VLM(PolicyConfig(model=str(checkpoint), chat_template_kwargs={"enable_thinking": False}))


def shown(policy, inputs):
    return policy.tokenizer.decode(inputs.ids)


class Written:
    """A sampler that has one answer."""

    batch_size = 8

    def __init__(self, policy, text, finished=True):
        ids = policy.tokenizer.encode(text, add_special_tokens=False)
        self.sample = Completion(token_ids=tuple(ids), logprobs=(-1.0,) * len(ids), finished=finished)

    def generate(self, inputs, group_size, sampling, numbers=()):
        return [[self.sample] * group_size for _ in inputs]


def collected(policy, text, finished=True):
    prompt = cases.prompt(1)
    collector = ConversationCollector(policy, Written(policy, text, finished))
    (rollout,) = collector.collect([prompt], [policy.encode(prompt)], 1, SamplingParams(max_tokens=64, temperature=1.0))
    return collector, rollout


def test_the_template_reads_what_it_is_told_in_every_turn(thinker, silent):
    prompt, reply = cases.prompt(1), [user_message("And now?")]
    for policy, head in ((thinker, OPENED), (silent, CLOSED)):
        first = policy.encode(prompt)
        assert shown(policy, first).endswith(HEAD + head)
        answered, ids = policy.extend(first, policy.encode_completion("</think>7"), reply)
        assert policy.tokenizer.decode(ids) == f"\n<|im_start|>user\nAnd now?<|im_end|>\n{HEAD}{head}"
        assert shown(policy, answered).count(head) == 2


def test_a_template_of_the_run_file_takes_the_place_of_the_model_s(checkpoint, tmp_path):
    own = tmp_path / "own.jinja"
    own.write_text(
        "{% for m in messages %}{{ m.role }}: {% for c in m.content %}{{ c.text if c.type == 'text' else IMAGE }}"
        "{% endfor %}\n{% endfor %}Answer: ".replace("IMAGE", "'<|vision_start|><|image_pad|><|vision_end|>'")
    )
    policy = VLM(PolicyConfig(model=str(checkpoint), chat_template=str(own)))
    assert shown(policy, policy.encode(Prompt(messages=[user_message("Which?")]))) == "user: Which?Answer: "
    policy.save(tmp_path / "saved")
    again = VLM(PolicyConfig(model=str(tmp_path / "saved")))
    assert shown(again, again.encode(Prompt(messages=[user_message("Which?")]))) == "user: Which?Answer: ", "a checkpoint has it"
    bare = shutil.copytree(checkpoint, tmp_path / "bare")
    (bare / "chat_template.jinja").unlink()
    with pytest.raises(UserError, match="it has no chat template"):
        VLM.check(PolicyConfig(model=str(bare)))
    config = PolicyConfig(model=str(bare), chat_template=str(own))
    VLM.check(config)
    given = VLM(config)
    assert shown(given, given.encode(Prompt(messages=[user_message("Which?")]))) == "user: Which?Answer: ", "without its own"


@pytest.mark.parametrize(
    "text, wanted",
    [
        (None, r"policy.chat_template: .*own.jinja does not exist: check the path"),
        (b"\xff", r"policy.chat_template: .*own.jinja can't be read: .*: name a text file"),
        (b"{% for m in messages %}\n{{ m", r"policy.chat_template: .*own.jinja line 2: .*: it must be a template of Jinja"),
        (b"{{ messages[0].role }}", "picture"),
    ],
)
def test_a_template_that_can_t_be_is_refused(checkpoint, tmp_path, text, wanted):
    if text is not None:
        (tmp_path / "own.jinja").write_bytes(text)
    config = PolicyConfig(model=str(checkpoint), chat_template=str(tmp_path / "own.jinja"))
    with pytest.raises(UserError, match=wanted) as found:
        VLM(config)
    assert "\n" not in str(found.value)
    with pytest.raises(UserError, match=wanted):
        VLM.check(config)


@pytest.mark.parametrize(
    "told, wanted",
    [
        ({"enable_thinkin": False}, "chat_template_kwargs.enable_thinkin: the model's chat template doesn't read enable_thinkin"),
        ({"add_generation_prompt": False}, "add_generation_prompt is set for each prompt by mmrl"),
        ({"messages": []}, "messages is set for each prompt by mmrl"),
    ],
)
def test_a_variable_that_the_template_doesn_t_read_is_refused(checkpoint, told, wanted):
    with pytest.raises(UserError, match=wanted):
        VLM(PolicyConfig(model=str(checkpoint), chat_template_kwargs=told))


@pytest.mark.parametrize(
    "head, opening",
    [
        (HEAD, ""),
        (HEAD + OPENED, OPENED),
        (HEAD + CLOSED, ""),
        (HEAD + "<think>", "<think>"),
        (HEAD + "<think></think>\n<think>\n", OPENED),
    ],
)
def test_which_heads_open_the_thinking(head, opening):
    said = "<|im_start|>system\nThink within <think>.<|im_end|>\n"
    assert opened_thinking(said, said + head) == opening


def test_an_answer_s_text_has_the_thinking_that_the_template_opened(thinker, silent):
    """TRL#6966: a reward for <think>...</think><answer>...</answer> was 0 for all answers of such models."""
    written = "A loop.</think>\n<answer>9</answer>"
    _, rollout = collected(thinker, written)
    assert rollout.completion == OPENED + written and has_think_answer_format(rollout.completion)
    assert thinker.decode(rollout.turns[0].token_ids) == written, "its tokens are those that were sampled"
    _, rollout = collected(silent, written)
    assert rollout.completion == written


def test_an_answer_within_thinking_that_never_ends_is_none(thinker):
    _, rollout = collected(thinker, "Perhaps <answer>9</answer>, or else", finished=False)
    assert only_answer(rollout.completion) == (None, "the answer tag is inside the thinking")


def test_a_given_answer_begins_behind_what_the_template_wrote(thinker):
    rest = thinker.tokenizer.encode("A loop.</think><answer>9</answer>", add_special_tokens=False)
    for given in ("<think>\nA loop.</think><answer>9</answer>", "<think>A loop.</think><answer>9</answer>"):
        assert thinker.encode_completion(given) == [*rest, thinker.reader.end_id]
    prompt = cases.prompt(1)
    collector = ConversationCollector(thinker, Written(thinker, "x"))
    (told,) = collector.demonstrate([prompt], [thinker.encode(prompt)], ["<think>A loop.</think><answer>9</answer>"])
    assert told.completion == "<think>\nA loop.</think><answer>9</answer>"
    assert list(told.turns[0].token_ids) == [*rest, thinker.reader.end_id]


def test_a_given_answer_without_thinking_is_refused_where_the_template_opens_it(thinker, silent):
    prompt = cases.prompt(1)
    collector = ConversationCollector(thinker, Written(thinker, "x"))
    with pytest.raises(UserError, match=r"the given answer '9' has no </think>: set policy.chat_template_kwargs"):
        collector.demonstrate([prompt], [thinker.encode(prompt)], ["9"])
    collector = ConversationCollector(silent, Written(silent, "x"))
    (told,) = collector.demonstrate([prompt], [silent.encode(prompt)], ["9"])
    assert told.completion == "9"


def test_a_given_answer_that_nothing_learns_from_stands_behind_thinking_that_ends_at_once(thinker, silent):
    """Each rl stage of such a model was refused, as the check of gold completions gives them to the verifiers first."""
    task = SimpleNamespace(simulation=None, gold=lambda prompt: "<answer>9</answer>")
    spec, seen = VerifierSpec(id="t/v", target="-:-"), []
    judge = SimpleNamespace(run=lambda name, made: [seen.append(case.completion) or Score(1.0) for case in made])
    entries = {"t": SimpleNamespace(prompt_template="", id="t")}
    for policy in (thinker, silent):
        collector = ConversationCollector(policy, Written(policy, "x"))
        given = {"t": task}, {"t": [cases.prompt(1)]}, {"t": {"t/v": spec}}, collector, judge, {"t": (99, "")}, entries
        assert list(gold_warnings(*given)) == []
    assert seen == ["<think>\n</think>\n\n<answer>9</answer>", "<answer>9</answer>"]


class Asks:
    """An environment that asks once more, and knows the answer."""

    def __init__(self, gold):
        self.gold, self.seen = gold, []

    def step(self, completion):
        self.seen.append(completion)
        return Reply(messages=[user_message("And now?")], terminated=len(self.seen) == 2)

    def gold_turn(self):
        return self.gold

    def close(self):
        pass


def test_later_turns_of_given_answers_have_the_thinking_too(thinker):
    prompt = replace(cases.prompt(1), task="t")

    def told(gold, **how):
        world = Asks(gold)
        task = type("Task", (Task,), {"environment": lambda self, prompt: world, "prompts": None})()
        collector = ConversationCollector(thinker, Written(thinker, "x"), tasks={"t": task}, max_turns=3)
        collector.demonstrate([prompt], [thinker.encode(prompt)], ["<think>A</think>9"], **how)
        return world.seen

    assert told("<think>B</think>8") == ["<think>\nA</think>9", "<think>\nB</think>8"]
    assert told("8", learned=False) == ["<think>\nA</think>9", "<think>\n</think>\n\n8"]
    with pytest.raises(UserError, match="the given answer '8' has no </think>"):
        told("8")


@pytest.mark.parametrize(
    "begun, whole",
    [
        ("<think>", "<think>\n!"),  # cut off within what the template wrote
        ("<think>\nA loop.</think>", "<think>\nA loop.</think>!"),
        ("<think>\nA loop.<think>\nB", "<think>\nA loop.<think>\nB!"),  # what is encoded anew begins with the sign
        ("<think>\n<think>\nB", "<think>\n<think>\nB!"),
    ],
)
@pytest.mark.parametrize("given", [False, True])
def test_an_answer_goes_on_from_the_very_text_that_it_is_given(thinker, begun, whole, given):
    collector, rollout = collected(thinker, "A loop.</think>\n<answer>9</answer>")
    collector.generator = Written(thinker, "!")
    endings = ["<think>"] if given else []
    (more,) = collector.go_on([rollout], [begun], SamplingParams(max_tokens=64, temperature=1.0), endings=endings)
    assert more.rollout.completion == (whole.removesuffix("!") + "<think>" if given else whole)


def test_a_teacher_s_own_template_reads_nothing(checkpoint):
    """It computes probabilities of the student's tokens, and was refused for a variable of the student's template."""
    words = {"chat_template_kwargs": {"enable_thinking": False}, "shown_tokens": ["<|im_start|>"]}
    words |= {"chat_template": str(checkpoint / "chat_template.jinja")}
    stage = {"kind": "distill", "steps": 1, "prompts_per_step": 2, "teacher": "tiny:qwen3_vl"}
    made = {"policy": {"model": str(checkpoint), **words}, "tasks": [{"id": "t"}], "stages": [stage]}
    config = RunConfig.model_validate({"name": "d", **made})
    student = VLM(config.policy)
    assert load_teacher(SimpleNamespace(config=config, device="cpu"), 0, student) is not None


def test_answers_go_on_from_a_text_with_the_thinking(thinker):
    collector, rollout = collected(thinker, "A loop.</think>\n<answer>9</answer>")
    begun = rollout.completion.removesuffix("<answer>9</answer>")
    collector.generator = Written(thinker, "<answer>6</answer>")
    sampling = SamplingParams(max_tokens=64, temperature=1.0)
    (more,) = collector.go_on([rollout], [begun], sampling)
    assert isinstance(more, Continued) and more.text == "<answer>6</answer>"
    assert more.rollout.completion == "<think>\nA loop.</think>\n<answer>6</answer>"
    turn = more.rollout.turns[0]
    assert not any(map(math.isnan, turn.logprobs)), "the words before are those that were sampled"
    assert thinker.decode(turn.token_ids) == "A loop.</think>\n<answer>6</answer>"


def test_blanks_before_punctuation_stay_whatever_the_tokenizer_says(silent):
    """transformers#40088, #44914: `x != y` was read as `x!= y`."""
    tokenizer = silent.tokenizer
    ids = tokenizer.encode("x != y , 3 . 4", add_special_tokens=False)
    kept = tokenizer.clean_up_tokenization_spaces
    tokenizer.clean_up_tokenization_spaces = True
    tokenizer.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output = True  # earlier versions do so unasked
    try:
        assert tokenizer.decode(ids) != "x != y , 3 . 4"
        assert silent.decode(ids) == "x != y , 3 . 4"
    finally:
        tokenizer.clean_up_tokenization_spaces = kept
        tokenizer.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output = False


@pytest.mark.parametrize("family", ["qwen3_vl", "llava"])
@pytest.mark.parametrize("settings", [{"max_length": 40}, {"padding": "max_length", "max_length": 400}])
def test_prompts_are_whole_whatever_a_training_saved_in_the_tokenizer_s_settings(tmp_path, family, settings):
    """vllm#20058: a prompt lost its end, the head of the answer included, or was filled up."""
    tiny.save(str(tmp_path), family, hidden=32, layers=1)
    prompt = Prompt(messages=[user_message("Which digit? " + "x y " * 30, cases.picture(3, 28, 28))])
    whole = VLM(PolicyConfig(model=str(tmp_path))).encode(prompt).ids.tolist()
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    policy = VLM(PolicyConfig(model=str(tmp_path)))
    assert 40 < len(whole) < 400 and policy.encode(prompt).ids.tolist() == whole
    reply = [user_message("And now? " + "x y " * 30)]
    _, ids = policy.extend(policy.encode(prompt), policy.encode_completion("7"), reply)
    assert policy.tokenizer.decode(ids).endswith(HEAD) and policy.tokenizer.pad_token_id not in ids


def test_special_tokens_that_are_shown_are_text_of_answers_and_others_are_not(tmp_path):
    """TRL#2897, verl#1724: rewards couldn't see special tokens; and a given answer had their signs in the place of them."""
    tiny.save(str(tmp_path), "gemma3", hidden=32, layers=1)
    silent = VLM(PolicyConfig(model=str(tmp_path)))
    mark = "<|im_start|>"
    number = silent.tokenizer.convert_tokens_to_ids(mark)
    shown = VLM(PolicyConfig(model=str(tmp_path), shown_tokens=[mark]))
    text = f"a {mark}b c"
    assert number not in silent.encode_completion(text) and shown.encode_completion(text).count(number) == 1
    assert shown.decode(shown.encode_completion(text)) == text, "without the token that ends it"
    assert silent.decode(shown.encode_completion(text)) == "a b c"
    assert shown.encode_completion("a b") == silent.encode_completion("a b")
    refused = [("a", "is a word as others are"), ("[NONE]", "is none"), ("<image_soft_token>", "stands for a picture")]
    for token, why in [*refused, (silent.tokenizer.eos_token, "ends answers")]:
        with pytest.raises(UserError, match=f"policy.shown_tokens: .* {why}"):
            VLM(PolicyConfig(model=str(tmp_path), shown_tokens=[token]))
    with pytest.raises(UserError, match="ends answers"):  # as <end_of_turn>, which isn't the tokenizer's end
        AnswerTexts(silent.tokenizer, [mark], eos={number})


@pytest.mark.parametrize("text", ["message['content']", "message['content'] + ''"])
def test_a_template_that_takes_texts_gets_texts(tmp_path, text):
    """It wrote [{'type': 'text', 'text': 'Be kind.'}] for a system message, and '}] behind each answer of a conversation; or it
    failed at the list, as Pixtral's (mlx-vlm#174)."""
    tiny.save(str(tmp_path), "qwen3_vl", hidden=32, layers=1)
    file = tmp_path / "chat_template.jinja"
    plain, prompt = VLM(PolicyConfig(model=str(tmp_path))), cases.prompt(1)
    asked = Prompt(messages=[{"role": "system", "content": "Be kind."}, *prompt.messages])
    whole = plain.encode(asked).ids.tolist()
    written = "{% if message['role'] != 'user' %}{{ " + text + " }}{% elif message['content'] is string %}"
    file.write_text(file.read_text().replace("{% if message['content'] is string %}", written))
    policy = VLM(PolicyConfig(model=str(tmp_path)))
    assert policy.encode(asked).ids.tolist() == whole
    assert plain.reader.template.roles_of_text == frozenset() and "user" not in policy.reader.template.roles_of_text
    first, answer = policy.encode(prompt), policy.encode_completion("7")
    reply = policy.extend(first, answer, [user_message("And now?")])[1]
    assert reply == plain.extend(plain.encode(prompt), answer, [user_message("And now?")])[1]
