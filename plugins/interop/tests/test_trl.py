"""mmrl's tasks in TRL: what its trainer is given, what it gets back, and two of its steps on a tiny model."""

import json

import pytest
from mmrl_interop import peers
from mmrl_interop.trl import to_trl

from mmrl import UserError

pytest.importorskip("datasets")


@pytest.fixture
def unchecked(monkeypatch):
    """TRL need not be there: what it is given and gives is known."""
    monkeypatch.setattr("mmrl_interop.trl.peer", lambda *args: None)


def said(*texts):
    """Completions as TRL gives them."""
    return [[{"role": "assistant", "content": text}] for text in texts]


def test_rows_are_what_the_trainer_reads(unchecked):
    with to_trl("peers/shade", n=3) as made:
        data = made.train_dataset
    assert data.column_names == ["prompt", "images", "id", "place", "mmrl"] and len(data) == 3
    assert data[2]["prompt"] == [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": [{"type": "image", "text": None}, {"type": "text", "text": "How dark so so?"}]},
    ]
    assert (data[2]["id"], data[2]["place"]) == ("train-2", 2)
    assert [(i.mode, i.size, i.getpixel((0, 0))) for i in data[2]["images"]] == [("RGB", (56, 56), (40, 40, 40))]
    assert "images" not in json.loads(data[2]["mmrl"]), "they are in a column of their own"


def test_rewards_are_the_task_s_and_what_is_missing_is_none(unchecked):
    told = {}
    with to_trl("peers/shade", n=4) as made:
        (reward,) = made.reward_funcs
        assert reward.__name__ == "peers/shade"
        found = reward(
            completions=said("0", "2", "raise", "hang"),
            mmrl=made.train_dataset["mmrl"],
            prompts=[],
            completion_ids=[[1] * 4, [1] * 8, [1], [1]],
            trainer_state=None,
            log_metric=told.__setitem__,
            log_extra=told.__setitem__,
        )
    assert found == [1.0 + 0.25 * 4, 0.25 * 8, None, None]
    details = told.pop("detail")
    assert told == {"peers/exact": 0.5, "peers/long": (4 + 8 + 1 + 1) / 4, "missing": 0.5}
    assert "ValueError: what is this" in details[2] and "took longer than its deadline of 0.5 s" in details[3]


def test_verifiers_get_the_row_s_pictures(unchecked):
    with to_trl("peers/seen", n=2) as made:
        data = made.train_dataset
        assert made.reward(said("x", "x"), data["mmrl"], images=data["images"]) == [1.0, 1.0]
        assert made.reward(said("x", "x"), data["mmrl"], images=data["images"][::-1]) == [0.0, 0.0]


def test_completions_of_models_without_a_chat_template_and_with_tools(unchecked):
    with to_trl("peers/shade", n=3) as made:
        called = [{"role": "assistant", "content": "", "tool_calls": []}, {"role": "tool", "name": "f", "content": "1"}]
        parts = [{"role": "assistant", "content": [{"type": "text", "text": "2"}]}]
        assert made.reward(["0", called, parts], made.train_dataset["mmrl"]) == [1.25, 0.25, 1.25]


def test_an_environment_is_played_by_its_tool(unchecked):
    with to_trl("peers/guess", max_turns=3) as made:
        data = made.train_dataset
        won, _, lost, never, stuck, _ = played = [made.environment_factory() for _ in range(6)]
        for environment, place in zip(played, (3, 4, 5, 9, 6, 7), strict=True):
            assert environment.reset(**data[place]) is None
        reply = won.step("1")
        assert [part.get("text") for part in reply] == [None, "No. Guess again."] and reply[0]["image"].size == (56, 28)
        assert won.step("3") == [{"type": "text", "text": "The episode is over."}]
        with pytest.raises(ValueError, match="the episode is over"):
            won.step("3")
        assert lost.step("die") == [{"type": "text", "text": "The episode is over."}]
        with pytest.raises(ValueError, match="the episode is over"):
            never.step("9")
        for _ in range(3):
            stuck.step("0")
        told = {}
        found = made.reward(
            said("done", "4", "", "9", "0", "bug"),
            data["mmrl"],
            environments=played,
            log_metric=told.__setitem__,
            log_extra=told.__setitem__,
        )
        assert found == [2.25, 2.25, None, None, 0.0, None]
        assert told["missing"] == 0.5 and "a bug" in told["detail"][5]
        won.reset(**data[1])
        assert made.reward(said("1"), data["mmrl"], environments=[won]) == [2.25], "an environment is used again"


def test_environments_can_be_left_out(unchecked):
    with to_trl("peers/guess", n=1, environments=False) as made:
        assert set(made.arguments) == {"train_dataset", "reward_funcs"}
        assert made.reward(said("0"), made.train_dataset["mmrl"]) == [0.0], "nothing was played"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"id": "peers/clip"}, "task 'peers/clip' shows videos, and TRL's GRPO trainer takes images"),
        ({"id": "robotics/pick"}, "task 'robotics/pick' acts in a simulator, and its prompts have no text"),
        ({"id": "peers/shade", "n": 0}, "task 'peers/shade' gives no rows of split 'train': check n and its data"),
        ({"id": "peers/shade", "split": "dev"}, "task 'peers/shade' has no split 'dev'"),
        ({"id": "peers/shades"}, "no task 'peers/shades'. Did you mean 'peers/shade'?"),
    ],
)
def test_what_trl_can_not_train_on_is_refused(unchecked, args, message):
    with pytest.raises(UserError) as error:
        to_trl(**args)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, 'mmrl_interop.trl needs trl, which is not installed: pip install "trl>=1.16,<1.17"'),
        ("1.9.0", 'mmrl_interop.trl works with trl >=1.16,<1.17, and 1.9.0 is installed: pip install "trl>=1.16,<1.17"'),
        ("1.16.3", "mmrl_interop.trl: trl 1.16.3 can't be imported (ImportError: no"),
    ],
)
def test_a_missing_or_other_trl_is_one_line(monkeypatch, found, message):
    def version(dist):
        if found is None:
            raise peers.PackageNotFoundError(dist)
        return found

    def broken(module):
        raise ImportError("no\nsuch thing")

    monkeypatch.setattr(peers, "version", version)
    monkeypatch.setattr(peers.importlib, "import_module", broken)
    with pytest.raises(UserError) as error:
        to_trl("peers/shade")
    assert str(error.value).startswith(message) and "\n" not in str(error.value)
    assert str(error.value).endswith('pip install "trl>=1.16,<1.17"')


def trainer(folder, made, steps=2, **more):
    """TRL's trainer on a tiny model."""
    torch, trl = pytest.importorskip("torch"), pytest.importorskip("trl")
    from transformers import AutoModelForImageTextToText, AutoProcessor

    processor = more.pop("processor", None) or AutoProcessor.from_pretrained(folder, padding_side="left")
    kind = more.pop("kind", trl.GRPOTrainer)
    args = {"per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 8, "max_steps": steps, "beta": 0.0}
    quiet = {"report_to": [], "save_strategy": "no", "logging_steps": 1, "disable_tqdm": True, "gradient_checkpointing": False}
    cpu = {"use_cpu": True, "bf16": False, "learning_rate": 1e-3}
    config = trl.GRPOConfig(output_dir=str(folder / "out"), **{**args, **quiet, **cpu, **more})
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    return kind(model=model, processing_class=processor, args=config, **made.arguments)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("torch")
    from mmrl.policies.vlm import tiny

    path = tmp_path_factory.mktemp("tiny")
    tiny.save(str(path), "qwen3_vl")
    return path


@pytest.mark.slow
def test_two_steps_of_grpo(folder, monkeypatch):
    """TRL's own trainer samples, asks for rewards and updates; a score that is missing has no advantage."""
    pytest.importorskip("trl")
    kept, advantages = [], []
    with to_trl("peers/shade", model=str(folder)) as made:
        scored = made.reward

        def reward(completions, **columns):
            kept.append(scored([said("raise")[0] if k % 4 == 0 else c for k, c in enumerate(completions)], **columns))
            return kept[-1]

        monkeypatch.setattr(made, "reward", reward)
        running = trainer(folder, made)
        generate = running._generate_and_score_completions

        def watched(inputs):
            output = generate(inputs)
            advantages.append(output["advantages"].tolist())
            return output

        running._generate_and_score_completions = watched
        before = {name: w.clone() for name, w in running.model.named_parameters()}
        running.train()
    logged = [row for row in running.state.log_history if "reward" in row]
    assert len(logged) == len(kept) == len(advantages) == 2
    for row, values, gains in zip(logged, kept, advantages, strict=True):
        known = [v for v in values if v is not None]
        assert [v is None for v in values] == [True, False, False, False] * 2
        assert row["missing"] == 0.25 and row["rewards/peers/shade/mean"] == pytest.approx(sum(known) / 6, abs=1e-5)
        assert [gain for gain, v in zip(gains, values, strict=True) if v is None] == [0.0, 0.0]
    assert any(map(any, advantages)), "lengths differ, and so do rewards"
    assert any(not w.equal(before[name]) for name, w in running.model.named_parameters())


@pytest.mark.always
@pytest.mark.slow
def test_two_steps_of_grpo_in_environments(folder):
    """TRL's own loop of tools plays the episodes, pictures in the replies included; only what the model says is written here."""
    trl = pytest.importorskip("trl")
    from transformers import AutoProcessor
    from trl.chat_template_utils import qwen3_vl_chat_template

    processor = AutoProcessor.from_pretrained(folder, padding_side="left")
    processor.chat_template = processor.tokenizer.chat_template = qwen3_vl_chat_template
    prompts, rewards = [], []

    class Scripted(trl.GRPOTrainer):
        """In a group, the first is right in the second turn, the second in plain text, the third is wrong, the fourth lost."""

        def _generate_single_turn(self, prompt_ids, images, *args, **more):
            def turn(number, k):
                call = '<tool_call>\n{"name": "step", "arguments": {"text": "%s"}}\n</tool_call>'
                answer = str(self.answers[k])
                again = [answer, None, "77", "die"] if number else ["77", None, "77", "77"]
                return answer if again[k % 4] is None else call % again[k % 4]

            texts = [processor.decode(ids) for ids in prompt_ids]
            prompts.append((len(prompt_ids), texts[0], images and [len(i or ()) for i in images]))
            ends = [processor.tokenizer.eos_token_id]
            if len(prompts) % 3 == 1:
                said = [turn(0, k) for k in range(8)]
            elif len(prompts) % 3 == 2:
                said = [turn(1, k) for k in range(8) if k % 4 != 1]
            else:
                said = ["done"] * len(prompt_ids)
            return [processor.tokenizer.encode(text) + ends for text in said], None

        def _generate_and_score_completions(self, inputs):
            self.answers = [row["place"] for row in inputs]
            return super()._generate_and_score_completions(inputs)

    with to_trl("peers/guess", n=9, model=str(folder)) as made:
        scored = made.reward
        made.reward = lambda **columns: rewards.append(scored(**columns)) or rewards[-1]
        running = trainer(folder, made, processor=processor, kind=Scripted, max_completion_length=400)
        running.train()
    assert rewards == [[2.25, 2.25, 0.0, None] * 2] * 2
    first, second, third = prompts[:3]
    assert "Take your next turn and see what follows." in first[1] and first[2] is None
    assert (first[0], second[0], third[0]) == (8, 6, 6) and "No. Guess again." in second[1] and second[2] == [1] * 6
    logged = [row for row in running.state.log_history if "reward" in row]
    assert [row["missing"] for row in logged] == [0.25, 0.25] and [row["tools/failure_frequency"] for row in logged] == [0.0, 0.0]
